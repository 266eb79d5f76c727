"""What the copies can be told apart by: who asked for them, in which step, how large they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from traceana.analyze.layers.places import OUTSIDE, places

if TYPE_CHECKING:
    from traceana.trace import Trace


By = Literal["direction", "operator", "layer", "range", "call", "step", "size"]
"""What a row of transfers is of, beside its host memory: its direction and nothing else, the
innermost operator that asked for the copy, its layer, the innermost annotation around the call, the
call of the runtime or driver, the step, or the size in powers of two."""

_POWERS: Final = 1 << np.arange(63, dtype=np.int64)


def asker(trace: Trace, copies: pl.DataFrame, by: By) -> pl.Series | None:
    """Return what each of ``copies`` is told apart by, named as the column; None for no more.

    Texts are categorical. ``step`` is the step's number; ``size`` the largest power of two that is
    not larger than the copy's bytes, 0 for a copy of none. Null where the trace does not tell, but
    for layers, which are called as :mod:`traceana.analyze.layers` calls them.
    """
    match by:
        case "direction":
            return None
        case "operator":
            return trace.ops["name"].gather(copies["op"]).alias(by)
        case "range":
            return trace.ranges["text"].gather(copies["range"]).alias(by)
        case "call":
            return trace.calls["name"].gather(copies["call"]).alias(by)
        case "layer":
            named = places(trace.layers, by="layer", depth=None)["layer"].cast(pl.Categorical)
            return named.gather(copies["layer"]).fill_null(OUTSIDE).alias(by)
        case "step":
            return trace.steps["number"].gather(copies["step_row"]).alias(by)
        case "size":
            return _power_of_two(copies["bytes"]).alias(by)


def _power_of_two(sizes: pl.Series) -> pl.Series:
    known = sizes.fill_null(0).to_numpy()
    floor = np.where(known > 0, _POWERS[np.searchsorted(_POWERS, known, side="right") - 1], 0)
    return pl.select(pl.when(sizes.is_not_null()).then(pl.Series(floor))).to_series()
