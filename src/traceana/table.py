"""Tables: every column is declared once, and what shows or documents it is made of that.

An analysis lists the columns of its result as :class:`Column`. The frame and its types (also those
of an empty frame), the page, ``--columns``, ``--sort`` and ``--filter``, the units of the machine
formats, the docstring and ``docs/json.md`` follow from the list.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec
import polars as pl

DataType: TypeAlias = pl.DataType | type[pl.DataType]


class Kind(Enum):
    """The kind of the values of a column, which decides their type, unit and digits."""

    TEXT = "text"
    LONG = "text that may be long: it gets the remaining width"
    KERNEL = "a kernel's name"
    PATH = "a layer's path"
    LINE = "a line of the program: file, number, perhaps its text"
    CODE = "program text: its indentation counts"
    CATEGORY = "a category of kernels"
    PART = "a part of a category, or a direction"
    PARTS = "algorithms, separated by commas"
    LIBRARY = "libraries, separated by commas"
    BATCHED = "the form of a GEMM: plain, batched, strided batched"
    NUMBER = "an ordinal or identifier: no thousands separators"
    COUNT = "a count"
    MEAN = "a mean of counts"
    TIME = "a duration"
    MOMENT = "a point in time: enough digits to distinguish neighbours"
    BYTES = "bytes"
    BINARY = "bytes in powers of two"
    RATE = "bytes per second"
    SHARE = "a fraction of 1"
    FLOPS = "floating-point operations"
    FLOP_RATE = "floating-point operations per second"
    INTENSITY = "floating-point operations per byte"
    RATIO = "a ratio of two values of one unit"
    PROBABILITY = "a probability"
    FLAG = "true or false"
    VALUE = "a value in the unit of its row"
    DEVICE = "a device's number; -1: the CPU"

    @property
    def unit(self) -> str | None:
        """The unit in the machine formats."""
        return _UNITS.get(self)

    @property
    def dtype(self) -> DataType:
        """The type in a frame."""
        return _DTYPES.get(self, pl.String)


(
    TEXT, LONG, KERNEL, PATH, LINE, CODE, CATEGORY, PART, PARTS, LIBRARY, BATCHED, NUMBER, COUNT,
    MEAN, TIME, MOMENT, BYTES, BINARY, RATE, SHARE, FLOPS, FLOP_RATE, INTENSITY, RATIO,
    PROBABILITY, FLAG, VALUE, DEVICE,
) = Kind  # fmt: skip

_UNITS: Final[Mapping[Kind, str]] = {
    Kind.TIME: "ns",
    Kind.MOMENT: "ns",
    Kind.BYTES: "B",
    Kind.BINARY: "B",
    Kind.RATE: "B/s",
    Kind.SHARE: "fraction of 1",
    Kind.FLOPS: "FLOP",
    Kind.FLOP_RATE: "FLOP/s",
    Kind.INTENSITY: "FLOP/B",
}
_DTYPES: Final[Mapping[Kind, DataType]] = {
    **dict.fromkeys((Kind.NUMBER, Kind.COUNT, Kind.TIME, Kind.MOMENT), pl.Int64),
    **dict.fromkeys((Kind.BYTES, Kind.BINARY, Kind.FLOPS), pl.Int64),
    **dict.fromkeys((Kind.MEAN, Kind.RATE, Kind.SHARE, Kind.FLOP_RATE), pl.Float64),
    **dict.fromkeys((Kind.INTENSITY, Kind.RATIO, Kind.PROBABILITY, Kind.VALUE), pl.Float64),
    Kind.FLAG: pl.Boolean,
    Kind.DEVICE: pl.Int32,
}

PARTS_OF_ONE_WHOLE: Final = "parts of one whole"
STEP: Final = "one step"
"""The scale of times per step, which are read beside those of the whole: never in a finer unit."""
ONE_CALL: Final = "one call"
OF_FLOPS: Final = "FLOPs"

DEFAULT: Final = "\0"
"""A title that follows from the name, or a scale that follows from the kind."""


class Column(msgspec.Struct, frozen=True, eq=False):
    """One column of a table.

    ``aggregate`` is its value over the rows of a group, ``value`` follows from other columns of the
    table, and from itself where it has both; a column of neither is a key, or the analysis adds it
    under its name.

    ``title`` heads it on screens, by default its name in words. Columns of one ``scale`` share a
    unit; durations do by default, being parts of one whole. Neighbouring columns of one ``group``
    have it as a common title. For lack of width the column with the lowest ``rank`` goes first, of
    equal ones that with the first name; those without one stay. ``bars`` draws bars beside the
    column, which go at that rank. Columns that are not ``shown`` are in the machine formats, and on
    a screen by ``--columns``. A ``signed`` value is a difference. A duration that is 0 in all rows
    is left out, unless ``zeros``. An ``additive`` value is a sum over the steps: screens show its
    mean per step.
    """

    name: str
    kind: Kind = Kind.TEXT
    meaning: str = ""
    aggregate: pl.Expr | None = None
    value: pl.Expr | None = None
    title: str = DEFAULT
    scale: str = DEFAULT
    group: str = ""
    rank: int | None = None
    bars: int | None = None
    shown: bool = True
    signed: bool = False
    zeros: bool = False
    additive: bool = False
    type: DataType | None = None

    def __post_init__(self) -> None:
        """Fill in the title and the scale."""
        if self.title == DEFAULT:
            words = self.name.removesuffix("_ns").split("_")
            title = " ".join("FLOPs" if word == "flops" else word for word in words)
            msgspec.structs.force_setattr(self, "title", title)
        if self.scale == DEFAULT:
            scale = PARTS_OF_ONE_WHOLE if self.kind is Kind.TIME else ""
            msgspec.structs.force_setattr(self, "scale", scale)

    @property
    def dtype(self) -> DataType:
        """The type in a frame."""
        return self.kind.dtype if self.type is None else self.type

    @property
    def unit(self) -> str | None:
        """The unit in the machine formats."""
        return self.kind.unit


NO_TITLES: Final[Mapping[str, str]] = MappingProxyType({})
Columns: TypeAlias = tuple[Column, ...]


def names_of(columns: Columns) -> list[str]:
    """Return the names of ``columns``."""
    return [column.name for column in columns]


def schema_of(columns: Iterable[Column]) -> dict[str, DataType]:
    """Return the types of ``columns`` by name."""
    return {column.name: column.dtype for column in columns}


def by_name(columns: Iterable[Column]) -> dict[str, Column]:
    """Return ``columns`` by their names."""
    return {column.name: column for column in columns}


def laid_out(
    columns: Iterable[Column],
    *,
    shown: str = "",
    hidden: str = "",
    dropped: str = "",
    bars: str | None = None,
    titles: Mapping[str, str] = NO_TITLES,
) -> Columns:
    """Return ``columns`` as one table shows them; names in a text are separated by spaces.

    A page has the columns ``shown``, or all but the ``hidden``. ``dropped`` are those that go for
    lack of width, in this order, ``bar`` being the bars of the column ``bars``.
    """
    ranks = {name: rank for rank, name in enumerate(dropped.split(), 1)}
    return tuple(
        msgspec.structs.replace(
            column,
            shown=column.name in shown.split() if shown else column.name not in hidden.split(),
            rank=ranks.get(column.name),
            bars=ranks.get("bar", 0) if column.name == bars else None,
            title=titles.get(column.name, column.title),
        )
        for column in columns
    )


def chosen(columns: Iterable[Column], names: Iterable[str]) -> Columns:
    """Return those of ``columns`` with ``names``, in the order of these."""
    declared = by_name(columns)
    return tuple(declared[name] for name in names)


def hiding(columns: Iterable[Column], names: Container[str]) -> Columns:
    """Return ``columns``, those with ``names`` not shown."""
    return tuple(
        msgspec.structs.replace(column, shown=False) if column.name in names else column
        for column in columns
    )


def aggregated(rows: pl.DataFrame, keys: Sequence[str], columns: Columns) -> pl.DataFrame:
    """Return a row for each of ``keys`` in ``rows``, with the ``columns`` that aggregate."""
    return rows.group_by(keys).agg(
        column.aggregate.alias(column.name) for column in columns if column.aggregate is not None
    )


def completed(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """Return ``frame`` with the ``columns`` that follow from others, in the order of ``columns``.

    A value that needs a column which the frame lacks is null.
    """
    ready: dict[str, pl.Expr] = {}
    for column in columns:
        if column.value is None:
            continue
        needed = set(column.value.meta.root_names())
        if not needed.isdisjoint(ready):
            frame = frame.with_columns(**ready)
            ready = {}
        known = needed <= {*frame.columns}
        ready[column.name] = column.value if known else pl.lit(None, column.dtype)
    return frame.with_columns(**ready)


def conformed(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """Return exactly the ``columns`` of ``frame``, in order and type; a missing one is null."""
    here = frame.schema
    if list(here.items()) == list(schema_of(columns).items()):
        return frame
    if frame.is_empty():
        return pl.DataFrame(schema=schema_of(columns))
    return frame.select(
        pl.lit(None, column.dtype).alias(column.name)
        if column.name not in here
        else pl.col(column.name)
        if here[column.name] == column.dtype
        else pl.col(column.name).cast(column.dtype)
        for column in columns
    )


def whole_sum(name: str) -> pl.Expr:
    """Return the sum of a column, null if any value of it is null."""
    # A sum over some of the rows would look like the sum over all.
    column = pl.col(name)
    return pl.when(column.null_count() == 0).then(column.sum()).alias(name)


def one_or_null(name: str) -> pl.Expr:
    """Return the value that all rows of a group have in common, null if they differ."""
    column = pl.col(name)
    return pl.when(column.n_unique() == 1).then(column.first())


def per_second(amount: str, time_ns: str) -> pl.Expr:
    """Return ``amount`` over ``time_ns`` in units per second, null where that is 0."""
    return pl.when(pl.col(time_ns) > 0).then(pl.col(amount) * 1e9 / pl.col(time_ns))


def documented(columns: Iterable[Column]) -> str:
    """Return the lines of a docstring that describe ``columns``."""
    return "\n".join(
        f"``{column.name}``{f' ({column.unit})' if column.unit else ''}\n    {column.meaning}"
        for column in columns
        if column.meaning
    )
