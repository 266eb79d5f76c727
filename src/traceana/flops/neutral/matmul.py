"""Products of matrices, batched or not."""

from __future__ import annotations

from typing import Literal

from traceana.flops.model import Cost, Operand, Part, compulsory
from traceana.flops.registry import formula

MatmulKind = Literal["linear", "matmul", "batched_matmul", "matrix_vector", "dot"]


@formula("matmul")
def matmul(
    m: int,
    n: int,
    k: int,
    size: int | None,
    *,
    batch: int = 1,
    left: int | None = None,
    right: int | None = None,
    addend: int = 0,
    output_size: int | None = None,
    kind: MatmulKind = "matmul",
    part: Part = "forward",
) -> Cost:
    """2 · b · m · n · k: each of the b·m·n results is a sum of k products.

    k multiply-accumulates a result, counted as 2k operations and not 2k - 1 (Golub and Van Loan,
    Matrix Computations; PyTorch's counter agrees). An addend (a bias, beta·C) is where the
    sum starts: it adds no operation, and its elements are read. Reads b·m·k and b·k·n elements, or
    ``left`` and ``right`` where a matrix serves several of the batch, and writes b·m·n of
    ``output_size`` bytes (``size`` by default).
    """
    written = size if output_size is None else output_size
    moved = compulsory(
        Operand(batch * m * k if left is None else left, size),
        Operand(batch * k * n if right is None else right, size),
        Operand(batch * m * n, written),
        Operand(addend, written),
    )
    return Cost(kind, part, 2 * batch * m * n * k, moved, "matmul")


@formula("matmul.bias_grad")
def bias_grad(rows: int, columns: int, size: int | None) -> Cost:
    """m · n: the gradient of a linear layer's output, summed over its m rows.

    One addition an element. Reads m·n elements, writes n sums.
    """
    moved = compulsory(Operand(rows * columns, size), Operand(columns, size))
    return Cost("linear", "bias_grad", rows * columns, moved, "matmul.bias_grad")
