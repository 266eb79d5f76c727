"""A trace for other tools: Chrome's Trace Event Format for Perfetto, speedscope, DuckDB."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana.analyze.layer_tree import layer_tree
from traceana.analyze.line_tree import line_tree
from traceana.analyze.rates import bound, machine
from traceana.analyze.roofline import counted_work
from traceana.analyze.summaries import needs_timeline
from traceana.analyze.timeline import Window, capture
from traceana.columns.intervals import PER_DEVICE
from traceana.enrich.anonymous import Pseudonyms, anonymous
from traceana.errors import (
    CannotWriteError,
    MissingDependencyError,
    UsageError,
    how_to_install,
)
from traceana.files import check_free, scratch_folder, write_output
from traceana.flops.peaks import peak_for
from traceana.readers.kineto.cut import cut_text
from traceana.timeline.critical import critical
from traceana.timeline.cut import cut, extent, steps_of_cut
from traceana.timeline.idle import idle
from traceana.timeline.steps import select_like
from traceana.timeline.waits import BY_EVENT, BY_LAUNCH, BY_STREAM, all_waits
from traceana.timeline.work import has_frames
from traceana.trace import Trace
from traceana.trace.schema import CPU_DEVICE, SCHEMA, SCHEMA_VERSION
from traceana.trace.schema import ROW as ROW_NUMBER
from traceana.trace.work import labels
from traceana.version import __version__
from traceana.whatif.program import without_profiler

if TYPE_CHECKING:
    from traceana.trace.schema import Column

PERFETTO: Final = ".perfetto.json"
SPEEDSCOPE: Final = ".speedscope.json"
KINETO: Final = ".json"
DUCKDB: Final = ".duckdb"
_AT_ONCE: Final = 50_000
"""Events that are written to text at a time."""
_GZIP: Final = 31
"""The window bits of zlib with gzip's header, which then has no time."""


def export(
    trace: Trace, path: str | os.PathLike[str], *, anonymize: bool = False, overwrite: bool = False
) -> Path:
    """Write the trace for another tool and return the path; its ending names the format.

    ``.perfetto.json`` is for Perfetto, ``.speedscope.json`` for speedscope; another ``.json`` is a
    Kineto file with the events of the selected steps; each with ``.gz``. ``.duckdb`` is a DuckDB
    database of the tables. ``anonymize`` replaces the words that the program and the machine gave
    (:func:`traceana.enrich.anonymous.anonymous`). Raises
    :class:`~traceana.errors.CannotWriteError` on another ending, and if ``path`` exists and
    ``overwrite`` is false.
    """
    target = Path(path)
    made = exporter(target.name, anonymize=anonymize)
    check_free(target, force=overwrite)
    write_output(target, made(trace), force=overwrite)
    return target


def exporter(name: str, *, anonymize: bool = False) -> Callable[[Trace], Iterator[bytes]]:
    """Return the function that yields the content of ``name``; its ending names the format.

    Raises :class:`~traceana.errors.CannotWriteError` on another ending, and
    :class:`~traceana.errors.MissingDependencyError` without duckdb for its ending.
    """
    inner = name.removesuffix(".gz")
    if name.endswith(DUCKDB):
        require_duckdb()
        make = database
    elif inner.endswith(PERFETTO):
        make = perfetto
    elif inner.endswith(SPEEDSCOPE):
        make = speedscope
    elif inner.endswith(KINETO):
        make = partial(kineto, anonymize=anonymize)
    else:
        raise CannotWriteError(
            f"{name}: no export by that name; end it with {PERFETTO}, {SPEEDSCOPE}, or {KINETO} "
            f"for a Kineto file again, and .gz to compress it, or with {DUCKDB}"
        )
    if anonymize and not isinstance(make, partial):
        make = partial(_anonymous, make)
    return make if inner == name else partial(_compressed, make)


def _anonymous(make: Callable[[Trace], Iterator[bytes]], trace: Trace) -> Iterator[bytes]:
    return make(select_like(anonymous(trace.whole), trace))


def _compressed(make: Callable[[Trace], Iterator[bytes]], trace: Trace) -> Iterator[bytes]:
    packer = zlib.compressobj(6, wbits=_GZIP)
    for part in make(trace):
        yield packer.compress(part)
    yield packer.flush()


def perfetto(trace: Trace) -> Iterator[bytes]:
    """Yield all events in Chrome's Trace Event Format, with idle gaps, layers and critical path.

    Every activity, operator, range and runtime call is a complete event (``ph`` X) on the track of
    its stream or thread; ``ts`` and ``dur`` are microseconds with three decimals: exactly the
    trace's nanoseconds. Each device has a track of its idle gaps by cause and a track of the
    running layers; the critical path has a track too. Work that begins before earlier work of its
    stream ends has a track of its own, on which both stay visible. ``args`` hold class, layer,
    operator, line and stack of the program, and of work the figures of :func:`_figures`.
    Samples are counter events (``ph`` C).
    """
    needs_timeline(trace, "export")
    window = _without_overlaps(capture(trace))
    tracks = _tracks(window)
    head: dict[str, Any] = {
        "displayTimeUnit": "ns",
        "otherData": {
            "exporter": f"traceana {__version__}",
            "source": trace.meta.source,
            "clock": "recorded",
        },
    }
    if trace.meta.epoch_ns is not None:
        head["baseTimeNanoseconds"] = trace.meta.epoch_ns
    start = json.dumps(head).removesuffix("}")
    yield f'{start}, "traceEvents": [\n'.encode()
    yield ",\n".join(_metadata(tracks)).encode()
    yield from _counters(trace, window, tracks)
    events = window.events.join(tracks, on="track", how="left", maintain_order="left").join(
        _figures(trace), on="row", how="left", maintain_order="left"
    )
    for some in (events, _layers(events)):
        for rows in some.iter_slices(_AT_ONCE):
            yield "".join(f",\n{line}" for line in _complete(rows)).encode()
    yield b"\n]}\n"


def kineto(trace: Trace, *, anonymize: bool = False) -> Iterator[bytes]:
    """Yield a Kineto file with the events of the selected steps: a trace again.

    It has the figures of the selection (:mod:`traceana.timeline.cut`). Raises
    :class:`~traceana.errors.UsageError` where ``trace`` is not of one Kineto file.
    """
    if trace.meta.format != "kineto" or trace.meta.clock_start_ns is None:
        raise UsageError(
            f"{trace.meta.source} is not one Kineto file; for a bundle of the selected steps: "
            "traceana save"
        )
    if not Path(trace.meta.source).is_file():
        raise UsageError(
            f"{trace.meta.source}, the Kineto file that the bundle was saved from, is not there; "
            "for a bundle of the selected steps: traceana save"
        )
    part = cut(trace).with_meta(host_factors=without_profiler(trace.whole).meta.host_factors)
    stepwise = part.meta.cut is not None and part.meta.cut.steps is not None
    within = extent(trace, steps_of_cut(trace)) if stepwise else None
    return cut_text(part, within, Pseudonyms().text if anonymize else None)


def speedscope(trace: Trace) -> Iterator[bytes]:
    """Yield profiles of speedscope: of the layers, passes and classes, and of the program's lines.

    Weights are the trace's nanoseconds; those of a profile add up to the time of all work.
    """
    needs_timeline(trace, "export")
    frames: dict[str, int] = {}
    trees = {trace.meta.source: layer_tree(trace)}
    if has_frames(trace):
        root = pl.when(pl.col("parent").is_null()).then(pl.lit("all work"))
        label = pl.coalesce(root, pl.format("{} {}", "place", "text"), "place")
        trees["lines of the program"] = line_tree(trace).with_columns(label.alias("label"))
    profiles = []
    for name, tree in trees.items():
        of_children = tree.group_by("parent").agg(pl.col("time_ns").sum().alias("inner_ns"))
        own = (
            tree.with_row_index("row")
            .join(of_children, left_on="row", right_on="parent", how="left", maintain_order="left")
            .select("parent", "label", pl.col("time_ns") - pl.col("inner_ns").fill_null(0))
        )
        stacks: list[list[int]] = []
        samples, weights = [], []
        for parent, label, time in own.iter_rows():
            above = [] if parent is None else stacks[parent]
            stacks.append([*above, frames.setdefault(label, len(frames))])
            if time:
                samples.append(stacks[-1])
                weights.append(time)
        profiles.append(
            {
                "type": "sampled",
                "name": name,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"traceana {__version__}",
        "name": trace.meta.source,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    yield json.dumps(content).encode()


_ARGUMENTS: Final = ("layer", "operator", "line", "stack")
"""What the ``args`` of an event have besides its class, where it is known."""
_NAMES: Final = {
    "critical": "critical path",
    "idle": "idle gaps",
    "calls": "runtime calls",
    "overhead": "profiler overhead",
}


def _without_overlaps(window: Window) -> Window:
    """Return ``window`` with further tracks for work that begins before earlier work of its stream
    ends, as with programmatic dependent launch: a viewer draws one of two such events."""
    end = pl.col("start_ns") + pl.col("time_ns")
    streams = (window.tracks["kind"] == "stream").arg_true()
    work = (
        window.events.with_row_index("place")
        .filter(pl.col("track").is_in(streams.implode()), pl.col("row").is_not_null())
        .sort("track", "start_ns", "place")
    )
    begins_early = pl.col("start_ns") < end.cum_max().shift().over("track")
    overlapping = work.filter(begins_early)["track"].unique().sort()
    tracks = [window.tracks]
    added = window.tracks.height
    track_of = window.events["track"].to_numpy().copy()
    for track in overlapping:
        lanes: list[int] = []
        of_track = work.filter(track=track).select("place", "start_ns", end.alias("until"))
        for place, start, until in of_track.iter_rows():
            free = [lane for lane, busy_until in enumerate(lanes) if busy_until <= start]
            lane = free[0] if free else len(lanes)
            lanes[lane : lane + 1] = [until]
            if lane:
                track_of[place] = added + lane - 1
        tracks += [window.tracks[[track]]] * (len(lanes) - 1)
        added += len(lanes) - 1
    events = window.events.with_columns(pl.Series("track", track_of))
    return msgspec.structs.replace(window, tracks=pl.concat(tracks), events=events)


_FIGURES: Final = ("operator_flops", "operator_flops_per_s", "bound", "wait")
_WAITS: Final = {BY_STREAM: "stream", BY_EVENT: "event", BY_LAUNCH: "launch"}


def _figures(trace: Trace) -> pl.DataFrame:
    """Return :data:`_FIGURES` of the work by ``row``, as texts of JSON.

    ``operator_flops`` and ``operator_flops_per_s`` are those of all kernels of its operator
    (direct-equivalent, over their summed time); ``bound`` is compute or memory, by the roofline;
    ``wait`` is what it waited for: earlier work of its stream, an event or collective, or its
    launch, null in a selection.
    """
    rows = (trace.tables.activities["kind"] != "sync").arg_true()
    counted = counted_work(trace).with_columns(rows.cast(ROW_NUMBER).alias("row"))
    peaks, _ = machine(trace)
    kinds = counted.select("precision", "tensor_core").unique()
    of_kinds = [None if peaks is None else peak_for(peaks, *kind) for kind in kinds.iter_rows()]
    peak = kinds.with_columns(pl.Series("peak", of_kinds, dtype=pl.Float64))
    bandwidth = pl.lit(None if peaks is None else peaks.bandwidth, pl.Float64)
    # A selection has other rows than the whole trace, of which the waits are.
    waits = all_waits(trace if trace.whole is trace else Trace(trace.meta))
    of_work = pl.DataFrame({"row": waits.activity, "why": waits.why}).select(
        pl.col("row").cast(ROW_NUMBER),
        pl.col("why").replace_strict(_WAITS, default=None, return_dtype=pl.String).alias("wait"),
    )
    computes = pl.col("flops") > 0
    return (
        counted.join(peak, on=kinds.columns, how="left", nulls_equal=True, maintain_order="left")
        .join(of_work, on="row", how="left", maintain_order="left")
        .select(
            "row",
            pl.when(computes).then("flops").cast(pl.String).alias("operator_flops"),
            pl.when(computes, pl.col("unit_ns") > 0)
            .then((pl.col("flops") / pl.col("unit_ns") * 1e9).round().cast(pl.Int64))
            .cast(pl.String)
            .alias("operator_flops_per_s"),
            _quoted(bound(pl.col("flops"), pl.col("bytes"), pl.col("peak"), bandwidth)).alias(
                "bound"
            ),
            _quoted(pl.col("wait")),
        )
    )


def _quoted(word: pl.Expr) -> pl.Expr:
    return pl.format('"{}"', word.cast(pl.String))


def _tracks(window: Window) -> pl.DataFrame:
    """Return for each ``track`` its kind, process and thread, and their names.

    A device, and the host of a rank, is a process. A track is a thread of it, numbered by
    the track, because streams and threads of several kinds have equal numbers.
    """
    processes: dict[tuple[int | None, int | None], int] = {}
    rows = []
    for track, row in enumerate(window.tracks.iter_rows(named=True)):
        process = processes.setdefault((row["rank"], row["device"]), len(processes) + 1)
        name = _NAMES.get(row["kind"], row["kind"])
        if row["number"] is not None:
            name = f"{name} {row['number']}"
        rows.append((track, row["kind"], process, _process(row), 2 * track + 2, name))
    schema = {
        **{"track": pl.Int64, "kind": pl.String, "process": pl.Int64, "of": pl.String},
        **{"thread": pl.Int64, "thread_name": pl.String},
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _process(row: dict[str, Any]) -> str:
    rank = "" if row["rank"] is None else f"rank {row['rank']} "
    if row["device"] is None:
        return f"{rank}host"
    return f"{rank}CPU" if row["device"] == CPU_DEVICE else f"{rank}GPU {row['device']}"


def _metadata(tracks: pl.DataFrame) -> list[str]:
    """Return the names of processes and threads, in the order in which a viewer shows them."""
    events = []
    for process, of in tracks.select("process", "of").unique(maintain_order=True).iter_rows():
        events += [("process_name", process, 0, {"name": of})]
        events += [("process_sort_index", process, 0, {"sort_index": process})]
    streams = tracks.filter(pl.col("kind") == "stream").unique("process", maintain_order=True)
    layers = streams.with_columns(pl.lit("layers").alias("thread_name"), pl.col("thread") - 1)
    for process, thread, name in (
        pl.concat([layers, tracks]).select("process", "thread", "thread_name").iter_rows()
    ):
        events += [("thread_name", process, thread, {"name": name})]
        events += [("thread_sort_index", process, thread, {"sort_index": thread})]
    return [
        json.dumps({"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments})
        for name, process, thread, arguments in events
    ]


def _counters(trace: Trace, window: Window, tracks: pl.DataFrame) -> Iterator[bytes]:
    """Yield a counter event for each sample, in the process of its device, else of no other event.

    The value has no key of its own, which a viewer would write after the counter's name.
    """
    samples = trace.tables.samples
    if samples.is_empty():
        return
    processes = window.tracks.select(*PER_DEVICE, tracks["process"]).unique(PER_DEVICE)
    unit = pl.format(" ({})", pl.col("unit").cast(pl.String)).fill_null("")
    located = (
        samples.join(processes, on=PER_DEVICE, how="left", nulls_equal=True, maintain_order="left")
        .sort("start", maintain_order=True)
        .select(
            (pl.col("name").cast(pl.String) + unit).alias("name"),
            pl.col("process").fill_null(0),
            pl.col("start").alias("start_ns"),
            "value",
        )
    )
    for rows in located.iter_slices(_AT_ONCE):
        line = pl.concat_str(
            *(pl.lit(',\n{"ph": "C", "name": '), _json(rows["name"])),
            *(pl.lit(', "pid": '), "process", pl.lit(', "ts": '), _microseconds("start_ns")),
            *(pl.lit(', "args": {"": '), "value", pl.lit("}}")),
        )
        yield "".join(rows.select(line).to_series()).encode()


def _layers(events: pl.DataFrame) -> pl.DataFrame:
    """Return the running layer of each device, until work of the next layer starts."""
    work = events.filter(pl.col("kind") == "stream").sort("process", "start_ns")
    layer = pl.col("layer").fill_null("(no layer)")
    changed = (layer != layer.shift()) | (pl.col("process") != pl.col("process").shift())
    runs = (
        work.with_columns(changed.fill_null(True).cum_sum().alias("run"), layer.alias("layer"))
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("process").first(),
            pl.col("thread").first(),
            pl.col("layer").first(),
            pl.col("start_ns").first(),
            (pl.col("start_ns") + pl.col("time_ns")).max().alias("end"),
        )
    )
    first = work.group_by("process").agg(pl.col("thread").min().alias("thread"))
    following = pl.col("start_ns").shift(-1).over("process")
    return (
        runs.drop("thread")
        .join(first, on="process", maintain_order="left")
        .select(
            "process",
            pl.col("thread") - 1,
            pl.lit("layers").alias("kind"),
            pl.col("layer").alias("name"),
            "start_ns",
            (pl.min_horizontal("end", following) - pl.col("start_ns")).alias("time_ns"),
            pl.lit("layer").alias("category"),
            *(pl.lit(None, pl.String).alias(name) for name in (*_ARGUMENTS, *_FIGURES)),
        )
    )


def _complete(events: pl.DataFrame) -> pl.Series:
    """Return a line of JSON for each of ``events``."""
    arguments = (
        pl.when(pl.col(name).is_null())
        .then(pl.lit(""))
        .otherwise(pl.lit(f', "{name}": ') + _json(events[name]))
        for name in _ARGUMENTS
    )
    figures = (pl.concat_str(pl.lit(f', "{name}": '), name).fill_null("") for name in _FIGURES)
    line = pl.concat_str(
        *(pl.lit('{"ph": "X", "name": '), _json(events["name"])),
        *(pl.lit(', "cat": "'), "kind"),
        *(pl.lit('", "pid": '), "process", pl.lit(', "tid": '), "thread"),
        *(pl.lit(', "ts": '), _microseconds("start_ns")),
        *(pl.lit(', "dur": '), _microseconds("time_ns")),
        *(pl.lit(', "args": {"class": '), _json(events["category"])),
        *arguments,
        *figures,
        pl.lit("}}"),
    )
    return events.select(line).to_series()


def _json(texts: pl.Series) -> pl.Expr:
    """Return ``texts`` as strings of JSON; each distinct one is encoded once."""
    filled = texts.fill_null("")
    distinct = filled.unique(maintain_order=True)
    encoded = pl.Series([json.dumps(text) for text in distinct], dtype=pl.String)
    return pl.lit(filled.replace_strict(distinct, encoded, return_dtype=pl.String))


def _microseconds(column: str) -> pl.Expr:
    thousandths = (pl.col(column) % 1000).cast(pl.String).str.zfill(3)
    return pl.concat_str(pl.col(column) // 1000, pl.lit("."), thousandths)


ROW: Final = "row"
"""The number of a row in its table, which other tables have."""

_ROW_MEANING: Final = "number of the row in this table, counted from 0; other tables refer to it"
_BLOCK: Final = 1 << 20

WORK: Final = {
    ROW: "row of activities",
    "name": "name of the kernel, copy or operator",
    "kind": "kind of the activity",
    "category": "class of the activity, refined by its context",
    "part": "part of the category: algorithm, BLAS name, direction of a copy",
    "start": "ns from the trace's first event",
    "duration": "ns",
    "rank": "rank in a distributed run",
    "device": "device number within its rank; -1: the CPU",
    "stream": "CUDA or HIP stream; of a CPU operator, its thread",
    "step": "number of the step in which it was launched",
    "layer": "path of its layer",
    "direction": "pass of training",
    "operator": "innermost operator around the launch",
    "line": "line of the program that launched it, of the backward pass the forward's",
    "stack": "the program's lines that called it and the line, outermost first",
}
"""The columns of the table ``work`` and their meanings."""

_ROWS_OF_RESULTS: Final = {
    "idle_gaps": "the idle gaps of each device with their causes: the rows of idle --by gap",
    "critical_path": "the segments of the critical path: the rows of critical --by segment",
    "work": "the activities that are work (not synchronization), with the texts of their rows",
    "meta": "metadata of the trace, a JSON value each",
}


def require_duckdb() -> None:
    """Raise :class:`~traceana.errors.MissingDependencyError` if duckdb is not installed."""
    try:
        import duckdb  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f".duckdb needs duckdb: {how_to_install('duckdb')}") from error


def database(trace: Trace) -> Iterator[bytes]:
    """Yield the content of a database with the tables of ``trace``.

    Tables and columns are those of docs/tables.md, with their meanings as comments, and a column
    ``row`` in each, since a database has no order; times are BIGINT nanoseconds. ``work`` has a row
    per activity that is work, with the texts of what it refers to; ``idle_gaps`` and
    ``critical_path`` have the rows of the commands, ``meta`` the trace's metadata. Raises
    ``OSError`` where the temporary files cannot be written.
    """
    tables = _tables(trace)
    with scratch_folder() as folder:
        path = folder / "trace.duckdb"
        _write(path, tables)
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block


def _write(path: Path, tables: Iterator[tuple[str, pl.DataFrame]]) -> None:
    import duckdb

    settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    part = path.with_name("part.parquet")
    try:
        with duckdb.connect(str(path), config=settings) as base:
            for name, frame in tables:
                # DuckDB reads frames through pyarrow, and Parquet by itself.
                with part.open("wb") as file:
                    frame.write_parquet(file, compression="uncompressed")
                rows = f"SELECT * FROM read_parquet({_literal(str(part))})"
                base.execute(f'CREATE TABLE "{name}" AS {rows}')
                part.unlink()
                # Each comment is a version of the table: written once, not one by one.
                base.begin()
                _comment(base, name)
                base.commit()
    except (
        duckdb.IOException,
        duckdb.TransactionException,
        duckdb.FatalException,
        pl.exceptions.ComputeError,
    ) as error:
        # polars does not name the reason.
        table = isinstance(error, pl.exceptions.ComputeError)
        what = "a table cannot be written" if table else str(error).splitlines()[0]
        raise OSError(f"temporary files in {tempfile.gettempdir()}: {what}") from error


def _tables(trace: Trace) -> Iterator[tuple[str, pl.DataFrame]]:
    for name in SCHEMA:
        yield name, trace.tables[name].with_row_index(ROW)
    yield "work", _work(trace)
    yield "idle_gaps", idle(trace, by="gap").frame
    yield "critical_path", critical(trace, by="segment").frame
    values: dict[str, Any] = msgspec.to_builtins(trace.meta)
    values |= {"traceana": __version__, "schema_version": SCHEMA_VERSION}
    texts = [json.dumps(value) for value in values.values()]
    yield "meta", pl.DataFrame({"property": list(values), "value": texts})


def _work(trace: Trace) -> pl.DataFrame:
    rows = trace.tables.activities.with_row_index(ROW)
    named = labels(
        trace.tables, "name", "category", "part", "operator", "step_number", "line", "stack"
    )
    return (
        rows.with_columns(
            *(
                named[name].cast(pl.String)
                for name in ("name", "category", "part", "line", "stack")
            ),
            named["operator"],
            named["step_number"].alias("step"),
            trace.tables.layers["path"].gather(rows["layer"]).alias("layer"),
        )
        .filter(pl.col("kind") != "sync")
        .select(*WORK)
    )


def _comment(base: Any, name: str) -> None:
    """Write the meanings of a table and its columns into the database."""
    described = SCHEMA.get(name)
    meaning = _ROWS_OF_RESULTS[name] if described is None else described.row
    base.execute(f'COMMENT ON TABLE "{name}" IS {_literal(meaning)}')
    columns = WORK if name == "work" else {}
    if described is not None:
        columns = {ROW: _ROW_MEANING}
        columns |= {column: _meaning(declared) for column, declared in described.columns.items()}
    for column, text in columns.items():
        base.execute(f'COMMENT ON COLUMN "{name}"."{column}" IS {_literal(text)}')


def _meaning(column: Column) -> str:
    row = column.row_of and f"row of {column.row_of}"
    return "; ".join(part for part in (column.meaning, column.unit, row) if part)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
