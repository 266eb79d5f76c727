"""Reads Kineto traces (torch.profiler's Chrome JSON) into the canonical tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.columns.distinct import Texts
from traceana.errors import NotATraceError
from traceana.readers.chrome.stream import Document, extent, ledger_of, read_stream
from traceana.readers.compiled import COMPILED
from traceana.readers.integrity import rebase, screen
from traceana.readers.kernel_names import NameTable
from traceana.readers.kineto import properties
from traceana.readers.kineto.decode import DEPENDENCY, Columns
from traceana.readers.kineto.scan import DECODER
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Tables, Trace, TraceMeta
from traceana.trace.ledger import Ledger
from traceana.trace.schema import (
    CPU_DEVICE,
    MODULE_SCOPE,
    NODES_OF_GRAPH,
    ROW,
    TABLES,
    RangeKind,
    conform,
    empty,
)


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Kineto file, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError`` on
    JSON without ``traceEvents`` and ``CorruptError`` where the file ends before the first event.
    """
    source = ByteSource(path, progress)
    columns = Columns()
    end = read_stream(source, DECODER, columns.take)
    malformed = columns.left_out.get(("malformed", ""), 0)
    if malformed == columns.events and (end.bare or malformed):
        raise NotATraceError(
            f"{path} is JSON without a valid trace event: "
            "pass the file that torch.profiler exported"
        )
    return assemble(columns, source, end)


def assemble(columns: Columns, source: ByteSource, end: Document) -> Trace:
    """Return the Trace of a file's events and of the keys beside them."""
    keys = end.keys
    ledger = ledger_of(columns, source, end)
    calls = columns.frame("call")
    device = activities(with_launches(columns.frame("device"), columns.frame("launch")), calls)
    ops, annotations = split_ops(columns.frame("op"))
    annotated = pl.concat(
        [columns.frame("range"), annotations.select(columns.frame("range").columns)]
    )
    timed = {
        "activities": device.drop("lane"),
        "calls": _renamed(calls).drop("bytes"),
        "ops": pl.concat(
            [_renamed(ops), _renamed(columns.frame("host_collective"))], how="diagonal"
        ),
        "ranges": ranges(annotated),
    }
    # Several calls of one Python function can begin and end within a microsecond, and their ids are
    # not read.
    repeats = {"ranges": pl.col("kind").is_in(["python", "module"])}
    tables = {
        name: screen(frame, name, ledger, repeats=repeats.get(name, False))
        for name, frame in timed.items()
    }
    tables["links"] = links(columns.frame("flow"), ledger)
    tables["memory"] = memory(columns.frame("memory"), ledger)
    tables["graph_dependencies"] = graph_dependencies(columns.frame(DEPENDENCY), device, ledger)
    part = None
    if properties.CUT in keys:
        from traceana.readers.kineto.cut import own_key

        try:
            part = own_key(keys)
        except msgspec.ValidationError:
            detail = f"key {properties.CUT}"
            ledger.add("malformed", 1, table="-", kept=True, detail=detail)
    if part is not None:
        tables["steps"] = conform("steps", part.table())
    counters = columns.frame("counter")
    if counters.height:
        from traceana.readers.kineto.counters import samples

        used = tables["activities"]["device"].unique()
        tables["samples"] = samples(counters, used, ledger)
    tables, first_ns = rebase(tables, ledger)
    names = NameTable(ledger)
    named, tables["process_groups"] = process_groups(
        tables["activities"], properties.process_groups(keys)
    )
    tables["activities"] = named.with_columns(names.ids(named["name"]).alias("name_id")).drop(
        "name"
    )
    tables["names"] = names.frame()
    tables["devices"] = properties.devices(keys, tables["activities"]["device"])
    tables["ledger"] = ledger.frame()
    # torch.profiler also records programs without operators, such as CuPy's.
    kernel_names = tables["names"]["name"].cast(pl.String)
    has_torch_kernels = kernel_names.str.contains("at::native::", literal=True).any()
    schema = keys.get("schemaVersion")
    base = properties.base_ns(keys, first_ns)
    rank, world_size = properties.rank(keys)
    return Trace(
        TraceMeta(
            format="kineto",
            format_version=None if schema is None else str(schema),
            producer="torch.profiler",
            framework="PyTorch" if ops.height or has_torch_kernels else None,
            epoch_ns=None if base is None else base + first_ns,
            clock_start_ns=first_ns,
            rank=rank,
            world_size=world_size,
            properties={
                **properties.facts(keys),
                **sampler(counters),
                "decoder": "compiled scanner" if COMPILED else "Python (msgspec)",
            },
            **extent(columns, source, end),
            **({} if part is None else part.meta()),
        ),
        Tables(tables),
    )


def sampler(counters: pl.DataFrame) -> dict[str, bool]:
    """Return ``sampler_locks_clocks`` where the sampler of ``counters`` locks the GPU's clocks."""
    if counters.is_empty():
        return {}
    from traceana.readers.kineto.counters import is_pm_sampled

    return {"sampler_locks_clocks": True} if is_pm_sampled(counters) else {}


def _renamed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.drop("category").rename({"pid": "process", "tid": "thread"})


_KINDS: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_sync": "sync",
    # The record of an event and a callback of the host: other nodes wait for them.
    "graph_event_node": "sync",
    "graph_host_node": "sync",
}

_NO_STREAM: Final = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the synchronization is of a context, not of a stream."""

_MOST_GRAPHS: Final = (1 << 31) - 1

# "Memcpy HtoD (Pinned -> Device)"; AMD writes "Host" where the memory kind is unknown, and Intel
# "Memcpy M2D (MEMORY(Unknown) -> DEVICE)": memory that no allocator of the device knows is the
# host's.
_COPY: Final = r"^Memcpy ([A-Z])(?:to|2)([A-Z])(?: \(([\w ()]+) -> ([\w ()]+)\))?"
_DIRECTIONS: Final = (
    "HtoD",
    "DtoH",
    "DtoD",
    "PtoP",
    "HtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
)

_MEMORY: Final = {
    "Pageable": "pageable",
    "Pinned": "pinned",
    "Device": "device",
    "Array": "array",
    "Managed": "managed",
    "Device Static": "device_static",
    "Managed Static": "managed_static",
    "DEVICE": "device",
    "HOST": "pinned",
    "SHARED": "managed",
}

# torch before 1.10 wrote annotations of the profiler's own hooks as operators.
_ANNOTATION_OP: Final = r"^(?:ProfilerStep[#*]|Optimizer\.|enumerate\(DataLoader\))"
_STEP: Final = r"^ProfilerStep[#*]"
_MODULE: Final = "nn.Module: "
_BACKWARD_FLOW: Final = "fwdbwd"

_GROUP: Final = ("group_name", "group_description", "group_ranks", "group_size")
_LISTED: Final = re.compile(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]")
"""Ranks in full: of a large group Kineto writes the first ones, "..." and the last one."""


def activities(device: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the activities with their name as text, in the order of the file, and their ``lane``:
    the device and the track on which they are drawn.

    ``device`` and ``calls`` are frames of :mod:`traceana.readers.kineto.decode`. The process stays
    null: the ``pid`` of a device row is the number of the device.
    """
    kind = pl.col("category").cast(pl.String).str.to_lowercase().replace_strict(_KINDS)
    device = with_described_copies(device)
    # PyTorch's own CUDA profiler draws nodes of CUDA graphs on lanes, and writes -1 for no stream.
    stream = pl.coalesce("cuda_stream", "stream", "tid")
    event_stream = pl.col("event_stream")
    within_graph = pl.col("graph_node").is_between(0, NODES_OF_GRAPH - 1)
    # torch.cuda.graph annotates kernels with the path of their module.
    annotation = pl.col("annotation").cast(pl.String)
    module_scope = pl.when(annotation.str.contains(r"^[A-Za-z_][\w.]*$")).then(
        pl.concat_str(pl.lit(MODULE_SCOPE), annotation)
    )
    # Direction and memories of a copy are in its name.
    copy = pl.col("name").cast(pl.String).str.extract_groups(_COPY).struct
    begin, end = (copy[side].replace("M", "H") for side in (0, 1))
    direction = pl.concat_str(begin, end, separator="to")
    copies = pl.DataFrame({"name": device["name"].unique()}).select(
        "name",
        pl.when(direction.is_in(_DIRECTIONS)).then(direction).alias("copy_kind"),
        _memory(copy[2], copy[0]).alias("source_memory"),
        _memory(copy[3], copy[1]).alias("destination_memory"),
    )
    frame = device.select(
        pl.col("name"),
        kind.alias("kind"),
        "start",
        "duration",
        pl.coalesce("device", "pid").alias("device"),
        "context",
        pl.when((stream != _NO_STREAM) & ~((kind == "sync") & (stream < 0)))
        .then(stream)
        .alias("stream"),
        "correlation",
        "external",
        *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
        "registers",
        "shared_memory",
        "bytes",
        pl.when(within_graph & pl.col("graph").is_between(1, _MOST_GRAPHS))
        .then(pl.col("graph") * NODES_OF_GRAPH + pl.col("graph_node"))
        .otherwise("graph_node")
        .alias("graph_node"),
        # -1: the event was recorded before the capture.
        pl.when((event_stream >= 0) & (event_stream != _NO_STREAM))
        .then("event_stream")
        .alias("event_stream"),
        pl.when(pl.col("event_correlation") > 0).then("event_correlation"),
        "collective",
        *_GROUP,
        "collective_sequence",
        "peer",
        "output_bytes",
        module_scope.cast(pl.Categorical).alias("scope"),
        pl.struct("pid", "tid").alias("lane"),
    ).join(copies, on="name", how="left", maintain_order="left")
    is_copy = pl.col("kind") == "memcpy"
    frame = frame.with_columns(
        pl.when(is_copy).then(pl.col("copy_kind").fill_null("unknown")).alias("copy_kind"),
        pl.when(is_copy).then("source_memory").alias("source_memory"),
        pl.when(is_copy).then("destination_memory").alias("destination_memory"),
    )
    without_bytes = (pl.col("kind").is_in(["memcpy", "memset"])) & pl.col("bytes").is_null()
    if not frame.select(without_bytes.any()).item():
        return frame
    # The launching call may have the bytes.
    sizes = (
        calls.lazy()
        .filter(pl.col("bytes").is_not_null(), pl.col("correlation").is_not_null())
        .group_by("correlation")
        .agg(pl.col("bytes").first().alias("call_bytes"))
        .collect()
    )
    joined = frame.join(sizes, on="correlation", how="left", maintain_order="left")
    return joined.with_columns(
        pl.when(without_bytes).then("call_bytes").otherwise("bytes").alias("bytes")
    ).drop("call_bytes")


def with_described_copies(device: pl.DataFrame) -> pl.DataFrame:
    """Return device rows with Kineto's names of copies and memsets that ``args`` describe.

    PyTorch's own CUDA profiler names all of them ``Memcpy`` and ``Memset``.
    """
    described = ("copy_kind", "copy_kind_number", "set_memory")
    if all(device[column].null_count() == device.height for column in described):
        return device
    # Few recordings have such names.
    from traceana.readers.cupti import COPY_KINDS, MEMORY_KINDS, copy_name, set_name

    described_rows = device.select(
        pl.col("name").cast(pl.String),
        pl.coalesce(
            pl.col("copy_kind").cast(pl.String),
            _word("copy_kind_number", COPY_KINDS),
        ).alias("copy_kind"),
        pl.col("source_memory").cast(pl.String),
        pl.coalesce(
            pl.col("destination_memory").cast(pl.String), _word("set_memory", MEMORY_KINDS)
        ).alias("destination_memory"),
        "set_memory",
    )
    is_copy = (pl.col("name") == "Memcpy") & pl.col("copy_kind").is_not_null()
    is_set = (pl.col("name") == "Memset") & pl.col("set_memory").is_not_null()
    names = described_rows.select(
        pl.when(is_copy).then(copy_name()).when(is_set).then(set_name()).otherwise("name")
    )
    return device.with_columns(names.to_series().cast(pl.Categorical).alias("name"))


def _word(column: str, words: Mapping[int, str]) -> pl.Expr:
    """Return the word for each number of CUPTI's, null for others."""
    return pl.col(column).replace_strict(words, default=None, return_dtype=pl.String)


def with_launches(device: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return device rows in which a kernel has the process group of its launch.

    Some versions record groups, and others sequence numbers, on c10d's operator around the launch
    alone. ``launches`` are these operators.
    """
    names = device["name"].unique()
    collectives = names.filter(names.cast(pl.String).str.contains("(?i)nccl"))
    if launches.is_empty() or collectives.is_empty():
        return device
    launches = launches.drop_nulls("external").unique("external", keep="first", maintain_order=True)
    # Collectives are few: the other rows are not copied.
    launched = (
        device.select("name", "category", "external")
        .with_row_index("row")
        .filter(pl.col("name").is_in(collectives.implode()))
        .filter(pl.col("category").cast(pl.String).str.to_lowercase() == "kernel")
        .join(launches.with_row_index("launch").select("external", "launch"), on="external")
    )
    none = pl.repeat(None, device.height, dtype=pl.UInt32, eager=True)
    launch = none.scatter(launched["row"], launched["launch"])
    return device.with_columns(
        pl.coalesce(name, launches[name].gather(launch)).alias(name)
        for name in (*_GROUP, "collective_sequence", "peer")
    )


def process_groups(
    activities: pl.DataFrame, listed: Mapping[str, tuple[str | None, list[int]]]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities with the row of their process group, the table of process groups).

    ``listed`` has the description and the ranks of the groups that the file lists, by name. Those
    that no activity has are in the table, too.
    """
    size = pl.col("group_size").cast(pl.Int32, strict=False)
    with_group = activities.filter(
        pl.any_horizontal(pl.col("group_name", "group_ranks").is_not_null())
    ).select(_GROUP)
    distinct = with_group.unique(maintain_order=True).with_row_index("process_group")
    row = distinct.with_columns(pl.col("process_group").cast(ROW))
    peer = pl.col("peer").cast(pl.Int32, strict=False)
    if distinct.is_empty():
        numbered = activities.with_columns(pl.lit(None, ROW).alias("process_group"), size, peer)
    else:
        numbered = activities.join(
            row, on=_GROUP, how="left", nulls_equal=True, maintain_order="left"
        ).with_columns(size, peer)
    rows = []
    for _, name, description, text, number in distinct.iter_rows():
        listed_description, ranks = listed.get(name or "", (None, None))
        rows.append((name, description or listed_description, *_ranks(text, number, ranks), None))
    used = set(distinct["group_name"])
    rows += [
        (name, description, *_ranks(None, len(ranks), ranks), None)
        for name, (description, ranks) in listed.items()
        if name not in used
    ]
    table = pl.DataFrame(rows, schema=TABLES["process_groups"], orient="row")
    return numbered.drop("group_name", "group_description", "group_ranks"), table


def _ranks(
    text: str | None, size: int | None, listed: list[int] | None
) -> tuple[str | None, int | None]:
    """Return (ranks as JSON text, size) of a group; ranks that contradict its size are left out."""
    ranks = None
    if text is not None and _LISTED.fullmatch(text):
        ranks = [int(number) for number in re.findall(r"\d+", text)]
    elif listed is not None:
        ranks = listed
    fits = size is not None and 0 < size < 2**31
    if ranks is not None and (not fits or len(ranks) == size):
        return msgspec.json.encode(ranks).decode(), len(ranks)
    return None, size if fits else None


def _memory(word: pl.Expr, side: pl.Expr) -> pl.Expr:
    """Return the kind of memory for its printed ``word``, else for the ``side`` of the copy."""
    kind = word.replace_strict(_MEMORY, default=None, return_dtype=pl.String)
    return (
        pl.when(kind.is_not_null())
        .then(kind)
        .when(side.is_in(["D", "P"]))
        .then(pl.lit("device"))
        .otherwise(pl.lit("unknown"))
    )


def split_ops(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (operators, annotations among them), with the columns of ``ops``."""
    names = ops["name"].unique()
    annotations = names.filter(names.cast(pl.String).str.contains(_ANNOTATION_OP))
    if not len(annotations):
        return ops, ops.clear()
    is_annotation = ops["name"].is_in(annotations.implode())
    return ops.filter(~is_annotation), ops.filter(is_annotation)


def ranges(frame: pl.DataFrame) -> pl.DataFrame:
    """Return canonical ranges of a "range" frame (see :mod:`traceana.readers.kineto.decode`)."""
    names, categories = Texts.of(frame["name"]), Texts.of(frame["category"])
    text, category = pl.col("text"), pl.col("text").str.to_lowercase()
    is_module, is_step, on_device, is_overhead, is_python = (
        pl.lit(pl.Series(rows))
        for rows in (
            names.where(text.str.starts_with(_MODULE)),
            names.where(text.str.contains(_STEP)),
            categories.where(category == "gpu_user_annotation"),
            categories.where(category == "overhead"),
            categories.where(category == "python_function"),
        )
    )
    kind = (
        pl.when(on_device)
        .then(pl.lit("device", RangeKind))
        .when(is_overhead)
        .then(pl.lit("overhead", RangeKind))
        .when(is_python & is_module)
        .then(pl.lit("module", RangeKind))
        .when(is_python)
        .then(pl.lit("python", RangeKind))
        .when(is_step)
        .then(pl.lit("step", RangeKind))
        .otherwise(pl.lit("annotation", RangeKind))
    )
    return frame.select(
        pl.col("name").alias("text"),
        kind.alias("kind"),
        pl.when(on_device).then(None).otherwise("pid").alias("process"),
        pl.col("tid").alias("thread"),
        pl.when(on_device).then("pid").alias("device"),
        "start",
        "duration",
        "input_shapes",
        "input_types",
    )


def links(flow: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return one row per forward-backward flow.

    ``ledger`` counts the end of each pair, events without a time or a partner, and flows of other
    categories.
    """
    backward = flow.filter(pl.col("category").cast(pl.String).str.to_lowercase() == _BACKWARD_FLOW)
    kept = backward.filter(pl.col("time").is_not_null())
    start = kept.filter(~pl.col("ends")).unique("id", keep="first", maintain_order=True)
    end = kept.filter("ends").unique("id", keep="first", maintain_order=True)
    pairs = start.join(end, on="id", suffix="_to", maintain_order="left")
    ledger.add("flow", pairs.height, table="links", detail="ends of the flows in links")
    ledger.add("flow", kept.height - 2 * pairs.height, table="links", detail="unpaired")
    ledger.add("missing_time", backward.height - kept.height, table="links")
    ledger.add("flow", flow.height - backward.height, table="links", detail="other categories")
    return pairs.select(
        pl.col("category").alias("kind"),
        pl.col("pid").alias("from_process"),
        pl.col("tid").alias("from_thread"),
        pl.col("time").alias("from_time"),
        pl.col("pid_to").alias("to_process"),
        pl.col("tid_to").alias("to_thread"),
        pl.col("time_to").alias("to_time"),
    )


def graph_dependencies(
    flow: pl.DataFrame, activities: pl.DataFrame, ledger: Ledger
) -> pl.DataFrame:
    """Return the dependencies between nodes of CUDA graphs that do device work, each once.

    A ``flow`` leads from the end of a node to the start of another one of the same launch, on the
    tracks on which they are drawn. Work that waits for the record of an event, or for a callback of
    the host, waits for what these wait for. ``ledger`` counts the flows.
    """
    if flow.is_empty():
        return empty("graph_dependencies")
    ends = pl.col("start") + pl.col("duration")
    nodes = activities.filter(pl.col("graph_node").is_not_null()).select(
        *("correlation", "kind", "start", "graph_node"),
        ends.alias("end"),
        pl.col("lane").struct.unnest(),
    )

    def at(side: str, *, ends: bool) -> pl.DataFrame:
        nodes_at = nodes.rename({side: "time", "graph_node": f"{side}_node"})
        return flow.filter(pl.col("ends") == ends).join(
            nodes_at.select("pid", "tid", "time", "correlation", f"{side}_node"),
            on=["pid", "tid", "time"],
        )

    joined = at("start", ends=True).join(at("end", ends=False), on=["id", "correlation"])
    between = joined.filter(pl.col("start_node") != pl.col("end_node"))
    ledger.add(
        "flow",
        2 * between["id"].n_unique(),
        table="graph_dependencies",
        detail="between nodes of CUDA graphs",
    )
    lost = flow.height - 2 * between["id"].n_unique()
    ledger.add("flow", lost, table="graph_dependencies", detail="without their nodes")
    pairs = between.select(graph_node="start_node", after="end_node").unique().sort(pl.all())
    passive = nodes.filter(kind="sync")["graph_node"].unique()
    for node in passive:
        before = pairs.filter(pl.col("graph_node") == node).select("after")
        behind = pairs.filter(pl.col("after") == node).select("graph_node")
        pairs = pl.concat(
            [
                pairs.filter((pl.col("graph_node") != node) & (pl.col("after") != node)),
                behind.join(before, how="cross"),
            ]
        )
    return pairs.unique().sort(pl.all())


def memory(frame: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return the allocator's events; those without a time are counted in ``ledger``."""
    timed = frame.filter(pl.col("time") != 0)
    ledger.add("missing_time", frame.height - timed.height, table="memory")
    on_host = pl.col("device_type") == 0
    return (
        timed.with_columns(pl.when(on_host).then(CPU_DEVICE).otherwise("device").alias("device"))
        .rename({"pid": "process", "tid": "thread"})
        .drop("device_type")
    )
