"""The types of numeric columns in every frame that a command makes, intermediate frames too."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import polars as pl
from polars.dataframe.group_by import GroupBy

import traceana

Types = dict[tuple[str, str, str], frozenset[str]]
"""Types of a column, by command, line of the code and name of the column."""

_SOURCE: Final = str(Path(traceana.__file__).parent)
_MAKING: Final[tuple[tuple[Any, str], ...]] = (
    *((pl.DataFrame, name) for name in ("select", "with_columns", "join", "hstack", "vstack")),
    (GroupBy, "agg"),
    (pl, "concat"),
)


class ColumnTypes:
    """Collects the types of numeric columns; set ``command`` before each command runs."""

    def __init__(self) -> None:
        self.command = ""
        self._found: dict[tuple[str, str, str], set[str]] = defaultdict(set)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect the types of all frames that traceana makes inside the ``with`` block."""
        with ExitStack() as patches:
            for owner, name in _MAKING:
                wrapped = self._wrapped(getattr(owner, name))
                patches.enter_context(mock.patch.object(owner, name, wrapped))
            make = pl.DataFrame.__init__

            def init(frame: pl.DataFrame, *args: Any, **options: Any) -> None:
                make(frame, *args, **options)
                self._add(frame)

            patches.enter_context(mock.patch.object(pl.DataFrame, "__init__", init))
            yield

    def found(self) -> Types:
        """Return the collected types."""
        return {key: frozenset(types) for key, types in self._found.items()}

    def _wrapped(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> Any:
            result = make(*args, **options)
            if isinstance(result, pl.DataFrame):
                self._add(result)
            return result

        return made

    def _add(self, frame: pl.DataFrame) -> None:
        line = _line()
        for column, dtype in frame.schema.items():
            if dtype.is_numeric() or dtype == pl.Null:
                self._found[self.command, line, column].add(str(dtype))


def _line() -> str:
    """Return the file and line of the innermost call in traceana's code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not frame.f_code.co_filename.startswith(_SOURCE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
