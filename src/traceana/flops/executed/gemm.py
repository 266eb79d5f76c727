"""Direct convolution and convolution by matrix product, its operands expanded or not."""

from __future__ import annotations

from math import prod

from traceana.flops.executed.model import Direction, Executed, Operations
from traceana.flops.neutral.convolution import Convolution
from traceana.flops.registry import formula


@formula("executed.direct")
def direct(conv: Convolution, direction: Direction, algorithm: str) -> Executed:
    """One multiplication and one addition for each of N·K·P·Q·(C/g)·R·S: no transform.

    Direct, implicit GEMM and implicit precomputed GEMM alike (Chetlur et al., cuDNN, 2014: the
    expanded operand is made tile by tile on the chip). Tiles of the matrix product that hang over
    its edge execute more, which the kernel's name alone would tell; they are not counted.
    """
    workspace = None if algorithm == "implicit_precomp_gemm" else 0
    return Executed(algorithm, direction, _product(conv), "executed.direct", workspace=workspace)


@formula("executed.explicit_gemm")
def explicit_gemm(conv: Convolution, direction: Direction, algorithm: str, size: int) -> Executed:
    """As direct; the input is expanded to a matrix of C·R·S rows and N·P·Q columns first.

    Chellapilla et al. (2006). The workspace is that matrix for all images, as cuDNN keeps it;
    Caffe expands one image at a time and needs an Nth. The expansion moves and computes nothing.
    """
    columns = conv.batch * prod(conv.walked or ())
    rows = conv.in_channels * prod(conv.window)
    return Executed(
        algorithm,
        direction,
        _product(conv),
        "executed.explicit_gemm",
        workspace=rows * columns * size,
    )


def _product(conv: Convolution) -> Operations:
    return Operations(conv.macs, conv.macs)
