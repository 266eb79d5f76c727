"""From the name of an algorithm, as kernels are classified, to what it executes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from traceana.flops.executed.fft import fft, fft_tiling
from traceana.flops.executed.gemm import direct, explicit_gemm
from traceana.flops.executed.model import Direction, Executed
from traceana.flops.executed.winograd import winograd
from traceana.flops.model import Refusal, Shape, UncountableError
from traceana.flops.neutral.convolution import Convolution

_PLAIN: Final[dict[str, Callable[[Convolution, Direction, str], Executed]]] = {
    "direct": direct,
    "depthwise": direct,
    "implicit_gemm": direct,
    "implicit_precomp_gemm": direct,
    # cuDNN's first algorithms for gradients: matrix products without expansion.
    "algo_0": direct,
    "algo_1": direct,
    "algo_3": direct,
    "fft": fft,
    "fft_tiling": fft_tiling,
}

FUSED_OUTPUTS: Final[dict[int, int]] = {3: 2}
"""Outputs a tile side of the fused kernels, by the filter's side: F(2x2, 3x3), Lavin and Gray's
first. cuDNN does not document its own."""

NONFUSED_OUTPUTS: Final[dict[int, int]] = {3: 4, 5: 5}
"""The same of the non-fused kernels: F(4x4, 3x3) and F(5x5, 5x5), after the names of cuDNN's
(``winogradForwardData4x4``, and ``…9x9_5x5`` for tiles of 9 x 9 and filters of 5 x 5)."""

supported: Final = (*_PLAIN, "gemm", "winograd", "winograd_nonfused")
"""The algorithms of the classification that have a formula: all but ``unknown``."""


def executed(
    conv: Convolution,
    algorithm: str,
    direction: Direction = "fprop",
    *,
    size: int = 4,
    outputs: Shape | None = None,
) -> Executed | Refusal:
    """Return what ``algorithm`` executes for ``conv`` in ``direction``, or why it cannot.

    ``size`` is the bytes of an element (of expanded and transformed tensors). ``outputs`` gives a
    Winograd tile's results a dimension; by default those of :data:`FUSED_OUTPUTS` and
    :data:`NONFUSED_OUTPUTS`, and 1 along a dimension in which the filter has one tap.
    """
    try:
        if algorithm in _PLAIN:
            return _PLAIN[algorithm](conv, direction, algorithm)
        if algorithm == "gemm":
            return explicit_gemm(conv, direction, algorithm, size)
        if algorithm in supported:
            fused = algorithm == "winograd"
            chosen = _outputs(conv, fused) if outputs is None else outputs
            if len(chosen) != len(conv.window):
                raise UncountableError("the Winograd tile is of another rank")
            return winograd(conv, direction, algorithm, size, chosen, fused)
    except UncountableError as error:
        return Refusal(str(error))
    return Refusal("no formula for this algorithm")


def _outputs(conv: Convolution, fused: bool) -> Shape:
    known = FUSED_OUTPUTS if fused else NONFUSED_OUTPUTS
    if not {side for side in conv.window if side > 1} <= set(known):
        sides = " or ".join(str(side) for side in known)
        raise UncountableError(f"the Winograd kernels take filters of {sides} a side")
    return tuple(1 if side == 1 else known[side] for side in conv.window)
