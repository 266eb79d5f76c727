"""Reads XPlane files (``*.xplane.pb``) of TensorFlow's and JAX's profilers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.readers.integrity import rebase, screen
from traceana.readers.kernel_names import NameTable
from traceana.readers.source import ByteSource, Progress
from traceana.readers.xplane.events import (
    ALLOCATOR_STATS,
    DEVICE_STATS,
    HOST_STATS,
    EventColumns,
    LineEvents,
    PlaneEvents,
    gathered,
    labels,
    per_distinct,
)
from traceana.readers.xplane.hlo import METADATA_PLANE, HloPrograms, instruction_keys
from traceana.readers.xplane.host import HostTables, derived_ranges
from traceana.readers.xplane.space import Line, Plane, Space, Value, read_space
from traceana.readers.xplane.wire import Buffer, WireError
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import (
    ACTIVITIES,
    DEVICES,
    LABEL,
    TABLES,
    ActivityKind,
    CopyKind,
    MemoryKind,
    conform,
)

STREAM: Final = r"^Stream #(\d+)"
"""Names of the lines that are streams: ``Stream #13(Kernel,MemcpyH2D)``."""
_NO_SCOPE: Final = "unknown"

_TEXTS: Final = (
    *("context_id", "tf_op", "annotation"),
    *("kernel_details", "memcpy_details", "memset_details"),
)
"""Stats of activities from whose texts :func:`with_details` takes columns."""
_DIRECTION: Final = "(?i)^memcpy(h2d|d2h|d2d|p2p|h2h|h2a|a2h|a2a|a2d|d2a)"
_MEMORIES: Final = [kind for kind in MemoryKind.categories if kind != "unknown"]

_AXES: Final = "xyz"
_NO_KERNEL: Final = ("memcpy", "memset")
"""What the names of copies and memsets begin with, in lower case."""
_AT_ONCE: Final = 1 << 16
"""Activities whose details are looked up together: a file may have thousands of planes."""


def activities(
    columns: PlaneEvents,
    lines: Sequence[Line],
    names: Sequence[str | None],
    device: int,
    hlo: HloPrograms,
) -> pl.DataFrame:
    """Return the activities of one GPU with their name as text, in the order of the file.

    They have the texts of :func:`with_details`, those that occur.
    """
    streams = pl.Series([line.name for line in lines], dtype=pl.String).str.extract(STREAM)
    frame = pl.DataFrame(
        {
            "name": gathered(labels(names), columns.name),
            "start": columns.start,
            "duration": columns.duration,
            "stream": gathered(streams.cast(pl.Int64, strict=False), columns.line),
            "correlation": columns.integers("correlation_id"),
            **{stat: columns.texts(stat) for stat in _TEXTS if columns.has(stat).any()},
        }
    ).with_columns(pl.lit(device).alias("device"))
    if not columns.has("hlo_module").any():
        return frame
    kernels = [None if (name or "").lower().startswith(_NO_KERNEL) else name for name in names]
    launches = frame.select(
        "correlation", "start", gathered(labels(kernels), columns.name).alias("kernel")
    )
    return pl.concat(
        [frame, hlo.device_instructions(instruction_keys(columns), launches)], how="horizontal"
    )


def with_details(frame: pl.DataFrame) -> pl.DataFrame:
    """Return activities with what their names and the texts of their stats say.

    Names that begin with memcpy or memset are copies and memsets; all others are kernels.
    """
    text, lower = pl.col("text"), pl.col("text").str.to_lowercase()
    kind = pl.coalesce(
        pl.when(lower.str.starts_with(word)).then(pl.lit(word)) for word in _NO_KERNEL
    )
    direction = text.str.extract(_DIRECTION).str.to_uppercase().str.replace("2", "to")
    named = per_distinct(
        frame["name"], kind=kind.fill_null("kernel"), direction=direction.fill_null("unknown")
    )
    absent = [stat for stat in (*_TEXTS, "scope") if stat not in frame.columns]
    frame = frame.with_columns(pl.lit(None, pl.Categorical()).alias(stat) for stat in absent)
    # A CUDA context is text of the form ``$$5``.
    context = per_distinct(
        frame["context_id"],
        context=text.str.extract(r"(\d+)$").cast(pl.Int64, strict=False),
    )
    # TensorFlow annotates kernels; XLA's instructions have scopes.
    scopes = [*(_scopes(frame[stat]) for stat in ("tf_op", "annotation")), frame["scope"]]
    copied = frame.select(pl.coalesce("memcpy_details", "memset_details")).to_series()
    is_copy, is_set = pl.col("kind") == "memcpy", pl.col("kind") == "memset"
    source, destination = pl.col("source_memory"), pl.col("destination_memory")
    return pl.concat(
        [
            frame.drop("scope", *_TEXTS),
            pl.select(pl.coalesce(*scopes).alias("scope")),
            named.select(
                pl.col("kind").fill_null("kernel").cast(ActivityKind),
                pl.when(is_copy).then("direction").cast(CopyKind).alias("copy_kind"),
            ),
            context,
            kernel_details(frame["kernel_details"]),
            memory_details(copied),
        ],
        how="horizontal",
    ).with_columns(
        pl.when(is_copy).then(source.fill_null("unknown")),
        pl.when(is_copy | is_set).then(destination.fill_null("unknown")),
    )


def _scopes(annotated: pl.Series) -> pl.Series:
    """Return the name scope in each annotation."""
    distinct = annotated.unique().drop_nulls()
    if not len(distinct):
        return annotated
    scopes = [scope_of(label) for label in distinct.cast(pl.String).to_list()]
    table = pl.DataFrame({"label": distinct, "scope": labels(scopes)})
    frame = annotated.alias("label").to_frame()
    return frame.join(table, on="label", how="left", maintain_order="left")["scope"]


def scope_of(label: str | None) -> str | None:
    """Return the name scope in an annotation of an activity, None where there is none.

    TensorFlow's ``annotation`` is ``scope:Type#key=value#``, several joined by ``::``; its
    ``tf_op`` is ``scope:Type``, and for XLA's kernels ``XlaModule:``.
    """
    if label is None:
        return None
    for part in label.split("::"):
        scope, colon, _ = part.partition("#")[0].rpartition(":")
        if colon and scope and scope != _NO_SCOPE and "XlaModule" not in scope:
            return scope
    return None


def kernel_details(texts: pl.Series) -> pl.DataFrame:
    """Return grid, block, registers and shared memory of each text; null where missing."""
    text = pl.col("text")
    static, dynamic = _number(text, "static_shared"), _number(text, "dynamic_shared")
    sizes = {
        f"{what}_{axis}": text.str.extract(rf"(?:^| ){what}:" + r"\d+," * i + r"(\d+)").cast(
            pl.Int64, strict=False
        )
        for what in ("grid", "block")
        for i, axis in enumerate(_AXES)
    }
    return _typed_per_distinct(
        texts,
        registers=_number(text, "regs"),
        shared_memory=pl.coalesce(
            static + dynamic, static, dynamic, _number(text, "shm"), _number(text, "group_mem")
        ),
        **sizes,
    )


def memory_details(texts: pl.Series) -> pl.DataFrame:
    """Return bytes and memory kinds of each copy or memset."""
    text = pl.col("text")
    return _typed_per_distinct(
        texts,
        bytes=_number(text, "size"),
        source_memory=_memory(text, "kind_src"),
        destination_memory=pl.coalesce(_memory(text, "kind_dst"), _memory(text, "kind")),
    )


def _number(text: pl.Expr, key: str) -> pl.Expr:
    return text.str.extract(rf"(?:^| ){key}:(\d+)").cast(pl.Int64, strict=False)


def _memory(text: pl.Expr, key: str) -> pl.Expr:
    word = text.str.extract(rf"(?:^| ){key}:(\w+)").str.to_lowercase()
    return pl.when(word.is_in(_MEMORIES)).then(word)


def _typed_per_distinct(texts: pl.Series, **columns: pl.Expr) -> pl.DataFrame:
    typed = {
        name: expression.cast(ACTIVITIES[name], strict=False)
        for name, expression in columns.items()
    }
    return per_distinct(texts, **typed)


_TASK: Final = "Task Environment"
_EPOCH_FLOOR: Final = 10**18
"""Nanoseconds from 1970 to 2001: larger times are Unix times, smaller ones count from the start."""
_FARTHEST: Final = 1 << 62
_JAX: Final = re.compile(r"^(?:PjitFunction\(|jit_|PjRt|CommonPjRt|PJRT_)")
_TENSORFLOW: Final = re.compile(r"^(?:TFE_|EagerExecute|ExecutorState::|TraceContext)")
_GPU: Final = re.compile(r"^/device:GPU:(\d+)")
_ANY: Final = re.compile(r"^/device:.*?:(\d+)")
_TPU: Final = re.compile(r"^/device:(TPU:\d+)")
_VENDORS: Final = ("AMD", "NVIDIA")
_INT32: Final = 1 << 31


def epoch_ns(space: Space, first_ns: int) -> int | None:
    """Return the Unix time of the first event, which is at ``first_ns`` on the file's clock."""
    if first_ns > _EPOCH_FLOOR:
        return first_ns
    start = _stats(space, _TASK).get("profile_start_time")
    if isinstance(start, int) and _EPOCH_FLOOR < start < _FARTHEST:
        return start + first_ns
    return None


def process_id(plane: Plane) -> int | None:
    """Return the process id of a host plane, None where not recorded."""
    value = plane.stats().get("process_id")
    return value if isinstance(value, int) and 0 <= value < _FARTHEST else None


def framework(space: Space) -> str | None:
    """Return JAX or TensorFlow, by the names of its runtime's events, None for neither."""
    if "jax_version" in _stats(space, METADATA_PLANE):
        return "JAX"
    names = [
        name
        for plane in space.planes
        if not plane.name.startswith("/device:")
        for name in plane.event_names.values()
    ]
    # TensorFlow can run XLA; JAX never runs TensorFlow's executor.
    if any(map(_TENSORFLOW.match, names)):
        return "TensorFlow"
    return "JAX" if any(map(_JAX.match, names)) else None


def producer(space: Space) -> str | None:
    """Return the recording library with its version, None where not recorded."""
    version = _stats(space, METADATA_PLANE).get("jaxlib_version")
    return f"jaxlib {version}" if isinstance(version, str) else None


def facts(space: Space) -> dict[str, Any]:
    """Return versions, hosts, and the profiler's errors and warnings."""
    properties: dict[str, Any] = {
        key: value
        for key, value in _stats(space, METADATA_PLANE).items()
        if key.endswith("_version") and isinstance(value, str)
    }
    for key in ("hostnames", "errors", "warnings"):
        if texts := getattr(space, key):
            properties[key] = list(texts)
    tpus = dict.fromkeys(tpu[1] for plane in space.planes if (tpu := _TPU.match(plane.name)))
    if tpus:
        properties["devices_not_read"] = list(tpus)
    return properties


def _stats(space: Space, name: str) -> dict[str, Value]:
    return {
        key: value
        for plane in space.planes
        if plane.name == name
        for key, value in plane.stats().items()
    }


def is_device(plane: Plane) -> bool:
    """Return whether a plane is a device's, of any vendor."""
    return plane.name.startswith("/device:")


def gpu_number(plane: Plane) -> int | None:
    """Return the number of a GPU's plane, None for other planes."""
    return _number_in_name(_GPU, plane)


def device_number(plane: Plane) -> int | None:
    """Return the number of any device's plane."""
    return _number_in_name(_ANY, plane)


def _number_in_name(pattern: re.Pattern[str], plane: Plane) -> int | None:
    match = pattern.match(plane.name)
    number = int(match[1]) if match else None
    return number if number is not None and number < _INT32 else None


def devices(space: Space, used: pl.Series) -> pl.DataFrame:
    """Return the GPUs with the numbers ``used``, those of activities; without any, all GPUs."""
    rows = {
        number: _row(number, plane.stats())
        for plane in space.planes
        if (number := gpu_number(plane)) is not None
    }
    wanted = set(used.drop_nulls().unique().to_list()) or set(rows)
    return pl.DataFrame([rows[number] for number in sorted(wanted)], schema=DEVICES, orient="row")


def _row(number: int, stats: dict[str, Value]) -> tuple[object, ...]:
    """Return the row of ``devices`` of a GPU."""

    def integer(key: str, most: int = 1 << 63) -> int | None:
        value = stats.get(key)
        return value if isinstance(value, int) and 0 <= value < most else None

    def first_text(*keys: str) -> str | None:
        values = (stats.get(key) for key in keys)
        return next((value for value in values if isinstance(value, str) and value), None)

    major, minor = integer("compute_cap_major"), integer("compute_cap_minor")
    vendor = first_text("device_vendor")
    usual_name = next((name for name in _VENDORS if vendor and name in vendor.upper()), None)
    return (
        number,
        first_text("device_name", "gpu_device_name", "device_type_string"),
        # Files without a vendor precede AMD's GPUs; only NVIDIA's have a compute capability.
        usual_name or vendor or (None if major is None else "NVIDIA"),
        None if major is None or minor is None else f"{major}.{minor}",
        integer("core_count", _INT32),
        integer("clock_rate"),
        integer("memory_size"),
        integer("memory_bandwidth"),
        None,
        None,
    )


_STREAM: Final = re.compile(STREAM)
_TIMED: Final = ("activities", "calls", "ops", "ranges")
_NOT_TEXT: Final = "warnings, errors and host names that are not UTF-8"
_BROKEN: Final = "lines and metadata that end within a field"
_UNKNOWN: Final = "fields that planes and lines do not have: what they hold is not read"


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of an XPlane file, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError``
    on a file without planes and ``CorruptError`` on an invalid message.
    """
    try:
        return _Reading(ByteSource(path), progress).trace()
    except WireError as error:
        raise CorruptError(
            f"{path} is damaged or not an XPlane file ({error}): copy or record it again"
        ) from error


class _Reading:
    """The state of reading one file."""

    def __init__(self, source: ByteSource, progress: Progress) -> None:
        self._source = source
        self._progress = progress
        self._buffer = Buffer.of(source.blocks(), source.bytes_total)
        self._space = read_space(self._buffer)
        if not self._space.planes:
            raise NotATraceError(
                f"{source.path} is a protocol buffer without planes: "
                "pass the .xplane.pb of a profile"
            )
        self._ledger = Ledger()
        self._tables = EventTables(
            HloPrograms(self._buffer, self._space, self._ledger), self._ledger
        )
        self._events = 0
        self._cut = self._space.cut or source.truncated

    def trace(self) -> Trace:
        """Return the Trace of all planes."""
        not_text = self._space.not_text
        self._ledger.add("damaged", not_text, table="-", kept=True, detail=_NOT_TEXT)
        for plane in self._space.planes:
            self._ledger.add("damaged", plane.broken, table="-", kept=True, detail=_BROKEN)
            self._ledger.add("damaged", plane.unknown, table="-", kept=True, detail=_UNKNOWN)
            if not is_device(plane):
                self._add(plane, plane.lines, (*HOST_STATS, *ALLOCATOR_STATS), "ranges")
                continue
            streams = [line for line in plane.lines if is_stream(plane, line)]
            derived = [line for line in plane.lines if not is_stream(plane, line)]
            self._add(plane, streams, DEVICE_STATS, "activities")
            self._add(plane, derived, (), "ranges")
        self._progress(self._buffer.size, self._buffer.size)
        if self._cut:
            self._ledger.add("truncated", 1, table="-", kept=True)
        # The file's bytes are freed before the tables are concatenated.
        del self._buffer
        tables, first_ns = self._tables.finish(self._space)
        return Trace(self._meta(first_ns), Tables(tables))

    def _add(
        self, plane: Plane, lines: Sequence[Line], wanted: tuple[str, ...], table: str
    ) -> None:
        if lines:
            events = LineEvents(self._buffer, plane, lines, wanted)
            self._tables.add(plane, lines, events.names, self._watched(events))
            self._count(events, plane, table)

    def _watched(self, events: LineEvents) -> Iterator[EventColumns]:
        for block in events:
            yield block
            self._progress(events.till, self._buffer.size)

    def _count(self, events: LineEvents, plane: Plane, table: str) -> None:
        self._events += events.events
        self._cut |= events.cut
        add = self._ledger.add
        add("malformed", events.damaged, table=table, detail=plane.name)
        add("aggregate", events.aggregates, table=table, detail=plane.name)
        add("rounded", events.rounded, table=table, kept=True, detail=plane.name)
        add("empty", events.empty, table=table, detail=plane.name)
        add("unnamed", events.unnamed, table=table, kept=True, detail=plane.name)
        add("damaged", events.unknown, table="-", kept=True, detail=_UNKNOWN)
        add("truncated", int(events.cut), table=table, detail="last event truncated")

    def _meta(self, first_ns: int) -> TraceMeta:
        return TraceMeta(
            source=str(self._source.path),
            format="xplane",
            producer=producer(self._space),
            framework=framework(self._space),
            epoch_ns=epoch_ns(self._space, first_ns),
            truncated=self._cut,
            bytes_read=self._source.bytes_read,
            bytes_total=self._source.bytes_total,
            events=self._events,
            properties=facts(self._space),
        )


def is_stream(plane: Plane, line: Line) -> bool:
    """Return whether a line is a GPU's stream, whose events are activities."""
    return gpu_number(plane) is not None and _STREAM.match(line.name) is not None


class EventTables:
    """Collects the events of all planes in the canonical tables."""

    def __init__(self, hlo: HloPrograms, ledger: Ledger) -> None:
        self._hlo = hlo
        self._ledger = ledger
        self._parts: dict[str, list[pl.DataFrame]] = {name: [] for name in (*_TIMED, "memory")}
        self._without_details: list[pl.DataFrame] = []
        self._rows_without_details = 0

    def add(
        self,
        plane: Plane,
        lines: Sequence[Line],
        names: Sequence[str | None],
        blocks: Iterable[PlaneEvents],
    ) -> None:
        """Add the events of some lines of a plane: all of them streams, or none.

        The events' ``name`` indexes ``names``.
        """
        if not is_device(plane):
            host = HostTables(lines, names, process_id(plane), self._hlo)
            for events in blocks:
                for table, frame in host.of(events).items():
                    self._keep(table, frame)
            return
        number = gpu_number(plane)
        if number is None or not any(is_stream(plane, line) for line in lines):
            number = device_number(plane)
            for events in blocks:
                self._keep("ranges", derived_ranges(events, lines, names, number))
            return
        for events in blocks:
            part = activities(events, lines, names, number, self._hlo)
            self._without_details.append(part)
            self._rows_without_details += part.height
            if self._rows_without_details >= _AT_ONCE:
                self._add_details()

    def _add_details(self) -> None:
        if self._without_details:
            parts = pl.concat(self._without_details, how="diagonal")
            self._without_details.clear()
            self._rows_without_details = 0
            self._keep("activities", with_details(parts))

    def keep_ranges(self, ranges: pl.DataFrame) -> None:
        """Add ranges from outside the planes."""
        self._keep("ranges", ranges)

    def finish(self, space: Space) -> tuple[dict[str, pl.DataFrame], int]:
        """Return the tables and the first event's time on the file's clock.

        Call it last.
        """
        self._add_details()
        instructions = self._hlo.instructions()
        del self._hlo  # frees the bytes of the file
        tables = {name: self._screened(name) for name in _TIMED}
        names = NameTable(self._ledger)
        activities = tables["activities"]
        named = activities.with_columns(names.ids(activities["name"]).alias("name_id"))
        tables["activities"] = named.drop("name")
        tables["memory"] = self._stacked("memory")
        tables, first_ns = rebase(
            {name: conform(name, table) for name, table in tables.items()}, self._ledger
        )
        tables["names"] = names.frame()
        tables["instructions"] = instructions
        tables["devices"] = devices(space, tables["activities"]["device"])
        tables["ledger"] = self._ledger.frame()
        return tables, first_ns

    def _keep(self, table: str, frame: pl.DataFrame) -> None:
        if not frame.height:
            return
        schema = _schema(table)
        self._parts[table].append(frame.cast({name: schema[name] for name in frame.columns}))

    def _screened(self, table: str) -> pl.DataFrame:
        frame = self._stacked(table)
        # Nested scopes of one name may begin and end together: they are not duplicates.
        repeats = table == "ranges"
        return screen(frame, table, self._ledger, repeats=repeats, zero_is_lost=False)

    def _stacked(self, table: str) -> pl.DataFrame:
        """Return the parts of a table concatenated, without the columns that no part has.

        Parts release each column once it is concatenated, so that one column at most is in memory
        twice.
        """
        schema, parts = _schema(table), self._parts.pop(table)
        heights = [part.height for part in parts]
        columns = [
            pl.concat(
                [
                    part.drop_in_place(name)
                    if name in part.columns
                    else pl.repeat(None, height, dtype=dtype, eager=True).alias(name)
                    for part, height in zip(parts, heights, strict=True)
                ],
                rechunk=True,
            )
            for name, dtype in schema.items()
            if any(name in part.columns for part in parts)
        ]
        return pl.DataFrame(columns) if parts else pl.DataFrame(schema=schema)


def _schema(table: str) -> dict[str, pl.DataType | type[pl.DataType]]:
    """Return the columns of a table; activities have ``name`` instead of ``name_id``."""
    if table != "activities":
        return TABLES[table]
    return {"name": LABEL} | {name: kind for name, kind in ACTIVITIES.items() if name != "name_id"}
