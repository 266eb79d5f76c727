"""A trace in memory or in a bundle on disk: the canonical tables and what is known of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Never

import polars as pl

from traceana.errors import MissingExtraError
from traceana.trace.meta import TraceMeta
from traceana.trace.schema import TABLES, conform, empty

if TYPE_CHECKING:
    import os
    from pathlib import Path


class Trace:
    """The canonical tables of one recording (see :mod:`traceana.trace.schema`).

    A table that is given as a ``LazyFrame`` (a reopened bundle) is read when it is first asked for.
    A Trace is immutable: ``with_tables`` gives a new one that shares what did not change.
    """

    def __init__(
        self,
        meta: TraceMeta,
        tables: Mapping[str, pl.DataFrame | pl.LazyFrame] | None = None,
        *,
        whole: Trace | None = None,
    ) -> None:
        """Take over ``tables``; those left out are empty.

        ``whole`` is the Trace that this one is a selection of. Raises ``KeyError`` on a table or a
        column that the schema does not declare.
        """
        self.meta = meta
        self._whole = whole
        self._tables: dict[str, pl.DataFrame | pl.LazyFrame] = {}
        for name, table in (tables or {}).items():
            if name not in TABLES:
                raise KeyError(f"no table {name!r}; {_tables_like(name)}")
            self._tables[name] = table if isinstance(table, pl.LazyFrame) else conform(name, table)

    def table(self, name: str) -> pl.DataFrame:
        """Return one table as a polars frame; raises ``KeyError`` on an unknown name."""
        if name not in TABLES:
            raise KeyError(f"no table {name!r}; {_tables_like(name)}")
        table = self._tables.get(name)
        if table is None:
            table = empty(name)
        if isinstance(table, pl.LazyFrame):
            table = table.collect()
        self._tables[name] = table
        return table

    def with_tables(self, **tables: pl.DataFrame) -> Trace:
        """Return a Trace in which ``tables`` replace those of this one."""
        return Trace(self.meta, {**self._tables, **tables}, whole=self._whole)

    def selection(self, meta: TraceMeta, **tables: pl.DataFrame) -> Trace:
        """Return a Trace that is a part of this one: ``tables`` hold what was selected."""
        return Trace(meta, {**self._tables, **tables}, whole=self.whole)

    @property
    def whole(self) -> Trace:
        """The Trace that this one is a selection of, or itself: what ran beside the selected."""
        return self._whole or self

    @property
    def activities(self) -> pl.DataFrame:
        """Device work: kernels, copies, sets, synchronizations; operators of a CPU-only trace."""
        return self.table("activities")

    @property
    def names(self) -> pl.DataFrame:
        """Distinct activity names and their classes."""
        return self.table("names")

    @property
    def classes(self) -> pl.DataFrame:
        """Distinct classes that the context of an activity made of its name's."""
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
        """Layers of the model, and the roles that are no layer."""
        return self.table("layers")

    @property
    def steps(self) -> pl.DataFrame:
        """Iterations."""
        return self.table("steps")

    @property
    def memory(self) -> pl.DataFrame:
        """Allocations and frees of the framework's allocator."""
        return self.table("memory")

    @property
    def devices(self) -> pl.DataFrame:
        """Devices and their properties."""
        return self.table("devices")

    @property
    def counters(self) -> pl.DataFrame:
        """Hardware counters of kernel launches, as Nsight Compute measured them."""
        return self.table("counters")

    @property
    def ledger(self) -> pl.DataFrame:
        """Integrity counts: what is not in a table, or is there and suspect."""
        return self.table("ledger")

    @property
    def on_cpu(self) -> bool:
        """Whether the activities are the host's operators, for want of any device work."""
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
                "to_pandas() needs pandas and pyarrow: pip install 'traceana[pandas]'"
            ) from error
        return {name: self.table(name).to_pandas() for name in TABLES}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the trace as a directory of Parquet files; see :mod:`traceana.trace.bundle`."""
        from traceana.trace.bundle import save

        return save(self, path, overwrite=overwrite)

    if not TYPE_CHECKING:  # a checker would take every name for an attribute

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(f"a Trace has no attribute {name!r}; {_tables_like(name)}")

    def __repr__(self) -> str:
        from traceana.trace.summary import one_line

        return one_line(self)

    def _repr_html_(self) -> str:
        from traceana.trace.summary import html

        return html(self)


def _tables_like(name: str) -> str:
    """Return the nearest table's name, and those of all."""
    near = get_close_matches(name, TABLES, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"tables: {', '.join(TABLES)}"
