from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Plan: TypeAlias = object
Field: TypeAlias = tuple[bool, str, str]
"""(is in args, key, kind)."""
Column: TypeAlias = tuple[str, int, int]
"""(kind, number of a field, number of another or -1)."""
Rule: TypeAlias = tuple[str, str | None, int, int]
"""(phase, lower-case category or None for all others, number of a frame or -1, least id or 0)."""
Cells: TypeAlias = tuple[bytes, int] | None
"""(values, how many are null); None where all are."""
Route: TypeAlias = tuple[str, str | None, int, int]
"""(phase, category, number of a frame or -1, events)."""
Scanned: TypeAlias = tuple[
    int, list[Route], list[tuple[int, list[Cells]]], list[str | None], list[str | None]
]
"""(events, routes, (rows, cells) of each frame, distinct texts, distinct texts of raw JSON)."""

VERSION: int

def json_plan(
    fields: list[Field], frames: list[list[Column]], rules: list[Rule], seed: int
) -> Plan: ...
def json_events(plan: Plan, text: bytes, stop: int) -> Scanned | None: ...
def xplane_events(*arrays: npt.NDArray[np.generic[Any]]) -> tuple[int, int, int]: ...
