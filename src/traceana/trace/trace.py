"""Trace: the canonical tables and the metadata, in memory or in a bundle on disk.

And results of pure functions of a Trace, computed once for each Trace (:func:`per_trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any, Concatenate, Final, Never, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import polars as pl

from traceana.errors import CorruptError, MissingExtraError, how_to_install, near
from traceana.frozen import frozen, handed_out
from traceana.trace import bundle
from traceana.trace.commands import Commands
from traceana.trace.meta import TraceMeta
from traceana.trace.schema import CPU_DEVICE, TABLES, conform, empty, join_pieces

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from traceana.model import Manifest


class Trace(Commands):
    """The canonical tables of one recording (see :mod:`traceana.trace.schema`).

    A table given as a ``LazyFrame`` (a reopened bundle) is read on first access. A Trace is
    immutable: ``with_tables`` and ``with_meta`` return a new one that shares unchanged tables.
    """

    __slots__ = ("__weakref__", "_kept_advice", "_manifest", "_meta", "_tables", "_whole")

    def __init__(
        self,
        meta: TraceMeta,
        tables: Mapping[str, pl.DataFrame | pl.LazyFrame] | None = None,
        *,
        whole: Trace | None = None,
        manifest: Manifest | None = None,
        kept_advice: bytes | None = None,
    ) -> None:
        """Create a Trace of ``tables``; tables left out are empty.

        ``whole`` is the Trace that this one is a selection of, ``manifest`` describes the layers of
        its model, ``kept_advice`` are the recommendations that its bundle keeps. Raises
        ``KeyError`` on a table or a column that the schema does not declare.
        """
        conformed: dict[str, pl.DataFrame | pl.LazyFrame] = {}
        for name, table in (tables or {}).items():
            if name not in TABLES:
                raise KeyError(f"no table {name!r}; {_tables_like(name)}")
            if not isinstance(table, pl.LazyFrame):
                table = conform(name, table).clone()
            conformed[name] = table
        self._meta: TraceMeta
        self._tables: dict[str, pl.DataFrame | pl.LazyFrame]
        self._whole: Trace | None
        self._manifest: Manifest | None
        self._kept_advice: bytes | None
        values = {
            **{"_meta": meta, "_tables": conformed, "_whole": whole, "_manifest": manifest},
            "_kept_advice": kept_advice,
        }
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(
            f"cannot set {name!r}: a Trace is immutable; use with_tables() or with_meta()"
        )

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"cannot delete {name!r}: a Trace is immutable")

    @property
    def meta(self) -> TraceMeta:
        """Metadata: source, format, epoch, device properties."""
        return self._meta

    @property
    def kept_advice(self) -> bytes | None:
        """The recommendations that its bundle keeps, for :mod:`traceana.advise.kept`."""
        return self._kept_advice

    def table(self, name: str) -> pl.DataFrame:
        """Return a clone of one table: who changes it does not change the Trace.

        Raises ``KeyError`` on an unknown name.
        """
        if name not in TABLES:
            raise KeyError(f"no table {name!r}; {_tables_like(name)}")
        table = self._tables.get(name)
        if table is None:
            table = empty(name)
        if isinstance(table, pl.LazyFrame):
            try:
                table = table.collect()
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                raise CorruptError(
                    f"table {name} of the bundle is damaged: save it again from the original trace"
                ) from error
        self._tables[name] = table
        return table.clone()

    def join_pieces(self) -> None:
        """Make each column one piece of memory; the values stay."""
        for table in self._tables.values():
            if isinstance(table, pl.DataFrame):
                join_pieces(table)

    def with_tables(self, **tables: pl.DataFrame) -> Trace:
        """Return a Trace in which ``tables`` replace those of this one."""
        return self._with(self.meta, tables, self._whole)

    def with_meta(self, **fields: Any) -> Trace:
        """Return a Trace in which ``fields`` replace those of :class:`TraceMeta`."""
        meta = msgspec.structs.replace(self.meta, **fields)
        made = self._with(meta, {}, self._whole)
        # How it was opened changes no recommendation.
        if fields.keys() <= bundle.HOW_OPENED:
            object.__setattr__(made, "_kept_advice", self._kept_advice)
        return made

    def with_manifest(self, manifest: Manifest | None) -> Trace:
        """Return a Trace whose layers are described by ``manifest``."""
        if manifest is None and self._manifest is None:
            return self
        return self._sharing(Trace(self.meta, whole=self._whole, manifest=manifest))

    def selection(self, meta: TraceMeta, **tables: pl.DataFrame) -> Trace:
        """Return a selection of this Trace, in which ``tables`` hold the selected rows."""
        return self._with(meta, tables, self.whole)

    def _with(
        self,
        meta: TraceMeta,
        tables: Mapping[str, pl.DataFrame],
        whole: Trace | None,
    ) -> Trace:
        return self._sharing(Trace(meta, tables, whole=whole, manifest=self._manifest))

    def _sharing(self, made: Trace) -> Trace:
        """Return ``made`` with the tables of this Trace that it has not."""
        # Those of this one have the declared columns already: to compare them takes long.
        object.__setattr__(made, "_tables", {**self._tables, **made._tables})
        return made

    @property
    def manifest(self) -> Manifest | None:
        """The layer manifest given to ``traceana.open(model=)``, or found beside the trace."""
        return self._manifest

    @property
    def whole(self) -> Trace:
        """The Trace that this one is a selection of, or itself."""
        return self._whole or self

    @property
    def activities(self) -> pl.DataFrame:
        """Kernels, copies, memsets and synchronizations; operators of a CPU-only trace."""
        return self.table("activities")

    @property
    def names(self) -> pl.DataFrame:
        """Distinct activity names and their classes."""
        return self.table("names")

    @property
    def classes(self) -> pl.DataFrame:
        """Distinct classes of activities that context refined."""
        return self.table("classes")

    @property
    def episodes(self) -> pl.DataFrame:
        """Convolutions, of one kernel or several."""
        return self.table("episodes")

    @property
    def calls(self) -> pl.DataFrame:
        """CUDA and HIP runtime and driver calls."""
        return self.table("calls")

    @property
    def ops(self) -> pl.DataFrame:
        """Framework operators."""
        return self.table("ops")

    @property
    def instructions(self) -> pl.DataFrame:
        """Instructions of XLA's compiled programs, with shapes."""
        return self.table("instructions")

    @property
    def ranges(self) -> pl.DataFrame:
        """Annotations: NVTX, modules, steps, record_function."""
        return self.table("ranges")

    @property
    def links(self) -> pl.DataFrame:
        """Flows between events, e.g. from a forward operator to its backward."""
        return self.table("links")

    @property
    def layers(self) -> pl.DataFrame:
        """Layers of the model, and roles of work outside layers."""
        return self.table("layers")

    @property
    def graph_calls(self) -> pl.DataFrame:
        """Calls of graphs of ``torch.compile``, from Inductor's generated code."""
        return self.table("graph_calls")

    @property
    def steps(self) -> pl.DataFrame:
        """Iterations."""
        return self.table("steps")

    @property
    def memory(self) -> pl.DataFrame:
        """Allocations and frees of the framework's allocator."""
        return self.table("memory")

    @property
    def process_groups(self) -> pl.DataFrame:
        """Process groups that collectives were called on."""
        return self.table("process_groups")

    @property
    def devices(self) -> pl.DataFrame:
        """Devices and their properties."""
        return self.table("devices")

    @property
    def counters(self) -> pl.DataFrame:
        """Hardware counters of kernel launches, measured by Nsight Compute."""
        return self.table("counters")

    @property
    def summary(self) -> pl.DataFrame:
        """Names with calls and times that a profiler printed without a timeline."""
        return self.table("summary")

    @property
    def is_summary(self) -> bool:
        """Whether the trace has a printed summary and no timeline."""
        return self.activities.is_empty() and not self.summary.is_empty()

    @property
    def ledger(self) -> pl.DataFrame:
        """Integrity counts: events that are missing from the tables, or suspect."""
        return self.table("ledger")

    @property
    def on_cpu(self) -> bool:
        """Whether the work is CPU operators, because the trace has no device work."""
        if self.is_summary:
            counted = self.summary.filter("counted")["device"]
            return len(counted) > 0 and bool((counted == CPU_DEVICE).fill_null(False).all())
        kinds = self.activities["kind"]
        return len(kinds) > 0 and bool((kinds == "op").all())

    def to_pandas(self) -> dict[str, Any]:
        """Return every table as a pandas frame, by name.

        Raises :class:`~traceana.errors.MissingExtraError` without the ``pandas`` extra.
        """
        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                f"to_pandas() needs pandas and pyarrow: {how_to_install('pandas')}"
            ) from error
        return {name: self.table(name).to_pandas() for name in TABLES}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the trace as a directory of Parquet files, a bundle, and return the directory.

        See :func:`traceana.trace.bundle.save`.
        """
        tables = {name: self.table(name) for name in TABLES}
        # As it will be opened: without a manifest, and of the selected rows alone.
        again = Trace(bundle.saved_meta(self.meta), tables)
        return bundle.save(
            self.meta, tables, path, advice=again._advice_to_keep(), overwrite=overwrite
        )

    @classmethod
    def from_bundle(cls, path: Path) -> Trace:
        """Reopen a bundle; its tables are read on first access.

        Raises :class:`~traceana.errors.BundleVersionError`.
        """
        found = bundle.load(path)
        return cls(found.meta, found.tables, kept_advice=found.advice)

    if not TYPE_CHECKING:  # type checkers would otherwise accept any attribute

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(f"a Trace has no attribute {name!r}; {_tables_like(name)}")

    def __repr__(self) -> str:
        return _one_line(self)

    def _repr_html_(self) -> str:
        return _html(self)


def _one_line(trace: Trace) -> str:
    """Return e.g. ``Trace('run.json.gz', kineto, 79 kernels, 10.692 ms, 1 device)``."""
    kernels = trace.activities.filter(trace.activities["kind"] == "kernel")
    time_ms = int(kernels["duration"].sum()) / 1e6
    devices = trace.activities["device"].n_unique()
    return (
        f"Trace({trace.meta.source!r}, {trace.meta.format}, {kernels.height} kernels, "
        f"{time_ms:.3f} ms, {devices} device{'' if devices == 1 else 's'})"
    )


def _html(trace: Trace) -> str:
    """Return an HTML fragment: the line of :func:`_one_line` and the tables with their sizes."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{trace.table(name).height:,}</td>"
        f"<td style='text-align:left'>{escape(', '.join(columns))}</td></tr>"
        for name, columns in TABLES.items()
    )
    return (
        f"<p><code>{escape(_one_line(trace))}</code></p>"
        f"<table><tr><th>table</th><th>rows</th><th>columns</th></tr>{rows}</table>"
    )


def _tables_like(name: str) -> str:
    """Return a hint with the most similar table name and all table names."""
    known = near(name, TABLES)
    return (f"did you mean {known!r}? " if known else "") + f"tables: {', '.join(TABLES)}"


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

    @wraps(function)
    def of(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if most is not None and trace.activities.height > most:
            return function(trace, *args, **kwargs)
        # A list, because a layer manifest cannot be hashed. It has one entry or two.
        known = results.setdefault(trace, [])
        for arguments, result in known:
            if arguments == (args, kwargs):
                return handed_out(result)
        result = frozen(function(trace, *args, **kwargs))
        known.append(((args, kwargs), result))
        return handed_out(result)

    return of
