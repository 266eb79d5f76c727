"""The algorithms that a convolution of the table of convolutions could take instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceana.flops.executed import Direction, executed
from traceana.flops.model import Refusal, UncountableError
from traceana.flops.neutral.convolution import Convolution, forward

_FAST: Final[dict[str, tuple[str, ...]]] = {
    "fprop": ("winograd", "winograd_nonfused", "fft", "fft_tiling"),
    "dgrad": ("winograd", "winograd_nonfused", "fft", "fft_tiling"),
    "wgrad": ("winograd_nonfused", "fft", "fft_tiling"),
}
"""What cuDNN has by direction (cudnnConvolutionFwdAlgo_t and its siblings)."""

_DIRECTIONS: Final[dict[str, Direction]] = {
    "fprop": "fprop",
    "dgrad": "dgrad",
    "wgrad": "wgrad",
}


@dataclass(frozen=True, slots=True)
class Way:
    """What one run of a convolution costs by another algorithm.

    ``moved_bytes``: operands once, transformed tensors written and read; ``workspace`` of the
    latter, null where no formula is known.
    """

    algorithm: str
    flops: int
    moved_bytes: int
    workspace: int | None


def readable(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose shape, direction and count are known."""
    return table.filter(
        pl.col("batch").is_not_null()
        & pl.col("input").is_not_null()
        & pl.col("output").is_not_null()
        & pl.col("direction").is_in(list(_DIRECTIONS))
        & pl.col("executed_flops").is_not_null()
        & ~pl.col("transposed")
    )


def fast_ways(row: Mapping[str, Any]) -> Iterator[Way]:
    """Yield what Winograd's and FFT's algorithms would cost; nothing where they do not fit."""
    conv = _convolution(row)
    if conv is None:
        return
    size = row["element_bytes"] or 4
    direction = _DIRECTIONS[row["direction"]]
    operands = forward(conv, size).bytes or 0
    for algorithm in _FAST[direction]:
        result = executed(conv, algorithm, direction, size=size)
        if not isinstance(result, Refusal):
            moved = operands + 2 * (result.workspace or 0)
            yield Way(algorithm, result.flops, moved, result.workspace)


def _convolution(row: Mapping[str, Any]) -> Convolution | None:
    window, stride = tuple(row["window"]), row["stride"]
    extents = list(zip(row["input"], row["output"], window, strict=True))
    if stride is None:
        # A stride of 2 leaves at most (H + R - 2) / 2 + 1 of H, whatever the padding.
        if not all(2 * (out - 1) > size + taps - 2 for size, out, taps in extents):
            return None
        stride = (1,) * len(window)
    try:
        return Convolution(
            batch=row["batch"],
            in_channels=row["in_channels"],
            out_channels=row["out_channels"],
            window=window,
            output=tuple(row["output"]),
            input=tuple(row["input"]),
            groups=row["groups"],
            stride=tuple(stride),
            dilation=tuple(row["dilation"] or (1,) * len(window)),
        )
    except UncountableError:
        return None


def shape_text(row: Mapping[str, Any]) -> str:
    """Return a convolution's extents for people: ``64x3x224x224, 64 filters of 7x7``."""
    if row["batch"] is None:
        return ""
    extents = (row["batch"], row["in_channels"], *(row["input"] or ()))
    window = "x".join(str(taps) for taps in row["window"])
    return f"{'x'.join(map(str, extents))}, {row['out_channels']} filters of {window}"
