"""Trace: the canonical tables of one recording and their metadata, as data.

And results of pure functions of a Trace, computed once for each Trace (:func:`per_trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from html import escape
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, Final, Never, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import polars as pl

from traceana.errors import MissingDependencyError, how_to_install, suggested
from traceana.files import shown
from traceana.frozen import frozen, frozen_mapping, handed_out
from traceana.plain_text import as_unicode
from traceana.runs.layer_manifest import Manifest
from traceana.trace.schema import CPU_DEVICE, TABLES
from traceana.trace.tables import Tables
from traceana.trace.work import labelled_work

HOW_OPENED: Final = frozenset({"opened", "opened_with"})
"""Fields of the meta that a bundle does not keep."""


RECORDED_WITH: Final = "recorded_with"
"""The property of a recorded run's trace with its ``commit``, ``started_at``, ``driver``, ``cpu``,
and the versions of its packages and libraries, all texts. A bundle keeps it."""


class Cut(msgspec.Struct, kw_only=True, frozen=True):
    """The selection that a cut is of: ``source`` is the recording that it was cut from.

    These ``steps``, ``devices`` and ``ranks`` are selected when the cut is opened; None: all.
    """

    source: str
    steps: tuple[int, ...] | None = None
    devices: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None


class TraceMeta(msgspec.Struct, kw_only=True, frozen=True):
    """Metadata of one trace.

    ``epoch_ns`` is the Unix time in nanoseconds of the trace's time 0, null where the format
    does not record it. ``bytes_read`` and ``bytes_total`` are sizes of the file on disk;
    they differ when it is ``truncated``.
    """

    source: str
    format: str
    format_version: str | None = None
    producer: str | None = None
    framework: str | None = None
    epoch_ns: int | None = None
    clock_start_ns: int | None = None
    """The trace's time 0 on the clock of its file, of Kineto's."""
    rank: int | None = None
    world_size: int | None = None
    truncated: bool = False
    bytes_read: int | None = None
    bytes_total: int | None = None
    events: int | None = None
    """Events found in the file; each is in a table or counted in the ledger."""
    opened: tuple[str, ...] = ()
    """The paths that the trace was opened by, where they may not be ``source``: of a bundle or
    another folder, or the files of several ranks."""
    opened_with: tuple[str, ...] = ()
    """The options that it was opened with, as words of the command line, less the selection."""
    operator_rules: tuple[tuple[str, str, str], ...] = ()
    """How the user's rules count operators: pattern of the name, formula, operands."""
    as_recorded: bool = False
    """Whether all times are to stay as the profiler recorded them."""
    unprofiled_step_ns: float | None = None
    """The step time without the profiler, where the recorded run measured it."""
    ready_share: float = 0.0
    """The part of the recorded steps in which a thread was ready and waited for a processor, where
    the recorded run measured it."""
    spread_of_blocks: float | None = None
    """The relative standard deviation between blocks of timed steps, where the recorded run has
    some before and after the profiled ones."""
    gpu_clock_mhz: int | None = None
    """The clock of the first GPU after the recorded steps, where the recorded run measured it."""
    step_interval_ns: tuple[int, int] | None = None
    """Of a Trace on the clock of its program: the ends of the interval of its median step."""
    step_cost_ns: tuple[int, int] | None = None
    """The part of it that is of the profiler's cost: the median step at its ends."""
    steps_run_ahead: bool = False
    """Whether steps were recorded as ended before the device had finished them."""
    host_factors: tuple[tuple[int | None, int | None, float], ...] = ()
    """Of a Trace on the clock of its program, and of a cut: rank, process, and how many times as
    long the host of the process takes without the profiler."""
    cut: Cut | None = None
    """The selection that it is of, where it is a cut of another recording."""
    properties: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Properties of the format: driver and CUDA versions, host, profiler options."""

    @property
    def host(self) -> str | None:
        """Name of the machine, or names, as recorded: nsys has ``host``, XPlane ``hostnames``."""
        names = self.properties.get("hostnames")
        if isinstance(names, tuple) and names:
            return ", ".join(map(str, names))
        name = self.properties.get("host")
        return str(name) if name else None

    def saved(self) -> TraceMeta:
        """Return the meta as a bundle keeps it: without how the trace was opened."""
        return msgspec.structs.replace(self, opened=(), opened_with=(), as_recorded=False)

    def __post_init__(self) -> None:
        """Make the path valid text (a file name may have other bytes), the properties read-only."""
        msgspec.structs.force_setattr(self, "source", shown(as_unicode(self.source)))
        msgspec.structs.force_setattr(self, "properties", frozen_mapping(self.properties))


_NOT_MADE: Final = {"on_program_clock": None, "measured_part": None}
"""What is made of a Trace later, and not of one that was changed."""


class Trace(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The canonical ``tables`` of one recording, and its ``meta``: source, format, epoch.

    A Trace is immutable: ``with_tables`` and ``with_meta`` return a new one that shares unchanged
    tables. :mod:`traceana.api` attaches the commands as methods.

    ``selected_from`` is the Trace that it is a selection of. ``manifest`` describes the layers of
    its model: given to ``traceana.open(model=)``, or found beside the trace. ``kept_advice`` are
    the recommendations that its bundle keeps (:mod:`traceana.advise.kept`).
    A Trace on the clock of its program, without the profiler, has the recording as ``recorded``,
    and is the ``on_program_clock`` of the recording, once it is made
    (:func:`traceana.whatif.program.without_profiler`). ``measured_part`` are its measured steps,
    once they are selected (:func:`traceana.timeline.steps.measured`).
    """

    meta: TraceMeta
    tables: Tables = msgspec.field(default_factory=Tables)
    selected_from: Trace | None = None
    manifest: Manifest | None = None
    kept_advice: bytes | None = None
    recorded: Trace | None = None
    on_program_clock: Trace | None = None
    measured_part: Trace | None = None

    def with_tables(self, **tables: pl.DataFrame) -> Self:
        """Return a Trace in which ``tables`` replace those of this one."""
        made = Tables(tables, self.tables)
        return msgspec.structs.replace(self, tables=made, kept_advice=None, **_NOT_MADE)

    def with_meta(self, **fields: Any) -> Self:
        """Return a Trace in which ``fields`` replace those of :class:`TraceMeta`."""
        meta = msgspec.structs.replace(self.meta, **fields)
        # How it was opened changes no recommendation.
        kept = self.kept_advice if fields.keys() <= HOW_OPENED else None
        return msgspec.structs.replace(self, meta=meta, kept_advice=kept, **_NOT_MADE)

    def with_manifest(self, manifest: Manifest | None) -> Self:
        """Return a Trace whose layers are described by ``manifest``."""
        if manifest is self.manifest:
            return self
        return msgspec.structs.replace(self, manifest=manifest, kept_advice=None, **_NOT_MADE)

    def selection(self, meta: TraceMeta, **tables: pl.DataFrame) -> Self:
        """Return a selection of this Trace, in which ``tables`` hold the selected rows."""
        made = self.with_tables(**tables)
        return msgspec.structs.replace(made, meta=meta, selected_from=self.whole)

    @property
    def whole(self) -> Trace:
        """The Trace that this one is a selection of, or itself."""
        return self.selected_from or self

    @property
    def work(self) -> pl.DataFrame:
        """The work, a row each, with its labels as columns: name, class, layer, operator, step …

        Times are those of the tables; :mod:`traceana.api` gives those of the program.
        :data:`traceana.trace.work.COLUMNS` lists the columns.
        """
        return labelled_work(self.tables)

    @property
    def is_summary(self) -> bool:
        """Whether the trace has a printed summary and no timeline."""
        return self.tables.activities.is_empty() and not self.tables.summary.is_empty()

    @property
    def is_snapshot(self) -> bool:
        """Whether the trace has the memory of an allocator at one time, and no timeline of work."""
        tables = self.tables
        return tables.activities.is_empty() and not tables.memory_blocks.is_empty()

    @property
    def on_cpu(self) -> bool:
        """Whether the work is CPU operators, because the trace has no device work."""
        if self.is_summary:
            counted = self.tables.summary.filter("counted")["device"]
            return len(counted) > 0 and bool((counted == CPU_DEVICE).fill_null(False).all())
        kinds = self.tables.activities["kind"]
        return len(kinds) > 0 and bool((kinds == "op").all())

    def to_pandas(self) -> dict[str, Any]:
        """Return every table as a pandas frame, by name.

        Raises :class:`~traceana.errors.MissingDependencyError` without the ``pandas`` extra.
        """
        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                f"to_pandas() needs pandas and pyarrow: {how_to_install('pandas')}"
            ) from error
        return {name: table.to_pandas() for name, table in self.tables.items()}

    if not TYPE_CHECKING:  # type checkers would otherwise accept any attribute

        def __getattr__(self, name: str) -> Never:
            if name in TABLES:
                raise AttributeError(f"a Trace has no attribute {name!r}: use trace.tables.{name}")
            known = [one for one in dir(type(self)) if not one.startswith("_")]
            raise AttributeError(
                f"a Trace has no attribute {name!r}{suggested(name, known)}: it has "
                + ", ".join(known)
            )

    def __repr__(self) -> str:
        """Return e.g. ``Trace('run.json.gz', kineto, 79 kernels, 10.692 ms, 1 device)``."""
        activities = self.tables.activities
        kernels = activities.filter(pl.col("kind") == "kernel")
        time_ms = int(kernels["duration"].sum()) / 1e6
        devices = activities["device"].n_unique()
        return (
            f"Trace({self.meta.source!r}, {self.meta.format}, {kernels.height} kernels, "
            f"{time_ms:.3f} ms, {devices} device{'' if devices == 1 else 's'})"
        )

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.tables._repr_html_()}"


P = ParamSpec("P")
R = TypeVar("R")

MOST_ACTIVITIES: Final = 1_000_000
"""Above this no result with a row for each activity is kept: it takes as much memory as a table."""


def per_trace(
    function: Callable[Concatenate[Trace, P], R],
) -> Callable[Concatenate[Trace, P], R]:
    """Return ``function`` with its results kept as long as their Trace lives.

    A Trace is immutable, so a result stays valid. All callers share it: its arrays and dictionaries
    are read-only, its lists tuples, and its frames handed out as clones. It must not refer to the
    Trace, which would then never be freed. It has a row for each step,
    layer or device; a result of the size of the tables is kept by :func:`per_small_trace`.
    """
    return _kept(function, None)


def per_small_trace(
    function: Callable[Concatenate[Trace, P], R],
) -> Callable[Concatenate[Trace, P], R]:
    """Return ``function`` as :func:`per_trace` does, for results with a row for each activity.

    They are kept for a Trace of at most :data:`MOST_ACTIVITIES`.
    """
    return _kept(function, MOST_ACTIVITIES)


def _kept(
    function: Callable[Concatenate[Trace, P], R], most: int | None
) -> Callable[Concatenate[Trace, P], R]:
    results: WeakKeyDictionary[Trace, list[tuple[Any, R]]] = WeakKeyDictionary()
    parameters = signature(function)

    @wraps(function)
    def of(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if most is not None and trace.tables.activities.height > most:
            return function(trace, *args, **kwargs)
        # A list, because a layer manifest cannot be hashed. It has one entry or two.
        known = results.setdefault(trace, [])
        # An argument that is left out is its default.
        bound = parameters.bind(None, *args, **kwargs)
        bound.apply_defaults()
        for arguments, result in known:
            if arguments == bound.arguments:
                return handed_out(result)
        result = frozen(function(trace, *args, **kwargs))
        known.append((bound.arguments, result))
        return handed_out(result)

    return of
