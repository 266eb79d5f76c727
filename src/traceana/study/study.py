"""The result of a study, and the published values of papers."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec
import polars as pl
import rtoml
from msgspec.structs import replace

from traceana.result import Result
from traceana.study import Name
from traceana.table import LONG, TEXT, Column, Columns, conformed

PAPERS: Final = ("kim2017", "trindade2018", "nvidia")
# Quantities are stored as printed: number, space, unit.
_UNITS: Final[Mapping[str, Mapping[str, int]]] = {
    "time": {"s": 10**9, "ms": 10**6},
    "bytes": {"MB": 10**6},
    "bytes_per_s": {"MB/s": 10**6, "GB/s": 10**9},
}
_COLUMNS: Final = {"time": "time_ns"}


NETWORK: Final = Column("network", TEXT, "the network; null if it is not known")
RUN: Final = Column(
    "run",
    LONG,
    "name that identifies a run: framework, device, and the options in which the runs differ",
)
SOURCE: Final = Column(
    "source",
    LONG,
    "with `--published`: table or figure of the paper with the values of the row, null for runs",
    shown=False,
)


class Study(msgspec.Struct, frozen=True):
    """One study: ``title`` names the measurement, ``conditions`` its machines and software.

    ``result`` has the rows, ``sections`` further tables by name. ``missing`` are instructions to
    record missing data.
    """

    name: Name
    title: str
    conditions: tuple[str, ...]
    result: Result
    sections: Mapping[str, Result] = msgspec.field(default_factory=dict)
    missing: tuple[str, ...] = ()


def with_published(study: Study) -> Study:
    """Return ``study`` with the published values of its paper after its own rows.

    ``source`` is null for the runs, otherwise the table or figure. The notes have the conditions
    and findings of the paper.
    """
    columns = (*study.result.columns, SOURCE)
    measured, printed = conformed(study.result.frame, columns), rows(study.name, columns)
    sentences = [sentence for exhibit in exhibits(study.name) for sentence in exhibit.sentences]
    result = replace(
        study.result,
        _frame=pl.concat([measured, printed]),
        notes=(*study.result.notes, *sentences),
        columns=columns,
    )
    return replace(study, result=result)


class Exhibit(msgspec.Struct, frozen=True):
    """A table or figure of a paper: its number, contents and measurement conditions.

    ``rows`` have the study's columns and are empty for a figure without printed values.
    ``findings`` are the paper's conclusions.
    """

    study: str
    authors: str
    title: str
    number: str
    shows: str
    method: str | None
    hardware: str | None
    versions: str | None
    findings: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def source(self) -> str:
        """The short reference: ``Kim et al. 2017, Table IV``."""
        return f"{self.authors}, {self.number}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """Notes on source, conditions and findings."""
        parts = (self.shows, self.method, self.hardware, self.versions)
        summary = f"{self.source}: {'; '.join(part for part in parts if part)}"
        drawn = () if self.rows else (f"{self.source}: plotted only, no printed numbers",)
        findings = (f"{self.authors}: {finding}" for finding in self.findings)
        return (summary, *drawn, *findings)


@cache
def exhibits(study: str | None = None) -> tuple[Exhibit, ...]:
    """Return the exhibits of ``study``, or all of them."""
    every = [exhibit for paper in PAPERS for exhibit in _read(paper)]
    return tuple(exhibit for exhibit in every if study in (None, exhibit.study))


def rows(study: str, columns: Columns) -> pl.DataFrame:
    """Return the published values of ``study`` in ``columns``; null where not published.

    ``source`` is the table or figure.
    """
    values = [
        {**row, "source": exhibit.source} for exhibit in exhibits(study) for row in exhibit.rows
    ]
    return pl.DataFrame(values, schema={column.name: column.dtype for column in columns})


def _read(paper: str) -> list[Exhibit]:
    text = (resources.files("traceana.study") / "papers" / f"{paper}.toml").read_text("utf-8")
    whole = rtoml.loads(text)
    return [
        Exhibit(
            study=table["study"],
            authors=whole["authors"],
            title=whole["title"],
            number=table["number"],
            shows=table["shows"],
            method=whole.get("method"),
            hardware=whole.get("hardware"),
            versions=whole.get("versions"),
            findings=tuple(table.get("findings", ())),
            rows=tuple(
                {
                    _COLUMNS.get(key, key): _quantity(key, value) if key in _UNITS else value
                    for key, value in row.items()
                }
                for row in table.get("row", ())
            ),
        )
        for table in whole["exhibit"]
    ]


def _quantity(kind: str, printed: str) -> int:
    """Return ``2.64 ms`` as an exact integer in the unit of its column (ns, B, B/s)."""
    number, unit = printed.split(" ")
    exact = Decimal(number) * _UNITS[kind][unit]
    if exact != int(exact):
        raise ValueError(f"{printed} is not an integer in the column's unit")
    return int(exact)
