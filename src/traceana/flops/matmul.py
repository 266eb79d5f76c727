"""Matrix products, batched or not: the derivation of their count, and the calls of frameworks."""

from __future__ import annotations

from math import prod
from typing import Literal

from traceana.flops.call import (
    Call,
    Cost,
    Operand,
    Part,
    Shape,
    UncountableError,
    broadcast,
    compulsory,
)
from traceana.flops.registry import formula, function

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
    written: int | None = None,
    output_size: int | None = None,
    kind: MatmulKind = "matmul",
    part: Part = "forward",
) -> Cost:
    """2 · b · m · n · k: each of the b·m·n results is a sum of k products.

    k multiply-accumulates per result, counted as 2k operations and not 2k - 1 (Golub and Van Loan,
    Matrix Computations; PyTorch's counter agrees). An addend (a bias, beta·C) is the initial value
    of the sum: it adds no operation, and its elements are read. Complex operands: 8 · b · m · n · k
    (4 multiplications and 2 additions a product, 2 additions to accumulate). Reads b·m·k and b·k·n
    elements, or ``left`` and ``right`` where a matrix is shared by several of the batch, and writes
    b·m·n, or ``written``, of ``output_size`` bytes (``size`` by default).
    """
    of_output = size if output_size is None else output_size
    moved = compulsory(
        Operand(batch * m * k if left is None else left, size),
        Operand(batch * k * n if right is None else right, size),
        Operand(batch * m * n if written is None else written, of_output),
        Operand(addend, of_output),
    )
    product = batch, m, n, k
    return Cost(kind, part, 2 * batch * m * n * k, moved, "matmul", product=product)


@formula("matmul.bias_grad")
def bias_grad(rows: int, columns: int, size: int | None) -> Cost:
    """m · n: the gradient of a linear layer's output, summed over its m rows.

    One addition per element. Reads m·n elements, writes n sums.
    """
    moved = compulsory(Operand(rows * columns, size), Operand(columns, size))
    return Cost("linear", "bias_grad", rows * columns, moved, "matmul.bias_grad")


@function("matmul", "addmm", "batched_matmul", "broadcast_matmul")
def product(call: Call) -> tuple[Cost, ...]:
    """Matrices or batches of them, [m, k] · [k, n], and an addend; with ``broadcast_matmul`` also
    vectors, and batches that are broadcast as numpy.matmul does."""
    ranks = {"matmul": (2,), "addmm": (2,), "batched_matmul": (3,)}.get(call.formula, ())
    left, right = _matrix(call, "x", *ranks), _matrix(call, "w", *ranks)
    if not left or not right:
        raise UncountableError("scalar operand")
    m = left[-2] if len(left) > 1 else 1
    n = right[-1] if len(right) > 1 else 1
    _agree(left[-1] == (right[-2] if len(right) > 1 else right[0]))
    _agree(not ranks or left[:-2] == right[:-2])
    batch = prod(broadcast(left[:-2], right[:-2]))
    kind: MatmulKind = "batched_matmul"
    if len(right) <= 2:
        # One matrix for the whole batch: the batch's rows are rows of one product.
        m, batch = batch * m, 1
        kind = "matmul" if len(right) == 2 else "matrix_vector"
        kind = "dot" if len(left) == len(right) == 1 else kind
        kind = "linear" if call.formula == "addmm" else kind
    return (
        matmul(
            *(m, n, left[-1] * call.values("x"), call.size("x")),
            batch=batch,
            left=prod(left),
            right=prod(right),
            # baddbmm with beta 0 reads no addend; beta is not always recorded: a given one counts.
            addend=call.elements("addend") if call.has("addend") else 0,
            output_size=call.size("addend"),
            kind=kind,
        ),
    )


@function("grouped_matmul")
def grouped(call: Call) -> tuple[Cost, ...]:
    """Products of several groups, as of the experts of a mixture: [m, k] · [g, k, n], by rows of
    the left; [g, m, k] · [k, n], by columns of the right; [m, k] · [k, n], by the terms of g sums.

    The sizes of the groups are on the device; they add up to the whole extent.
    """
    left, right = _matrix(call, "x", 2, 3), _matrix(call, "w", 2, 3)
    (m, k), (inner, n) = left[-2:], right[-2:]
    _agree(k == inner and (len(left) != 3 or len(right) != 3 or left[0] == right[0]))
    batch = left[0] if len(left) == len(right) == 3 else 1
    groups = call.shape("groups", 1)[0] if len(left) + len(right) == 4 else 1
    return (
        matmul(
            m,
            n,
            k * call.values("x"),
            call.size("x"),
            batch=batch,
            left=prod(left),
            right=prod(right),
            written=groups * batch * m * n,
            kind="batched_matmul",
        ),
    )


@function("summed_matmul")
def summed(call: Call) -> tuple[Cost, ...]:
    """An addend [m, n], and the sum of [b, m, k] · [b, k, n] over the batch: k·b terms each."""
    (batch, m, k), (other, inner, n) = call.shape("x", 3), call.shape("w", 3)
    _agree(batch == other and k == inner)
    return (matmul(m, n, k * batch, call.size("x"), addend=call.elements("addend")),)


@function("linear")
def linear(call: Call) -> tuple[Cost, ...]:
    """[…, k], a weight [n, k], and a bias."""
    rows, weight = call.shape("x"), call.shape("w", 1, 2)
    _agree(bool(rows) and rows[-1] == weight[-1])
    n = weight[0] if len(weight) == 2 else 1
    addend = call.elements("bias") if call.has("bias") else 0
    _agree(addend in (0, n))
    return (matmul(prod(rows[:-1]), n, rows[-1], call.size("x"), addend=addend, kind="linear"),)


@function("linear_backward")
def linear_backward(call: Call) -> tuple[Cost, ...]:
    """Input […, k], gradient […, n], weight [n, k], and the mask of the requested gradients."""
    entering, gradient, (n, k) = call.shape("x"), call.shape("dy"), call.shape("w", 2)
    _agree(bool(entering) and entering[-1] == k and gradient == (*entering[:-1], n))
    rows, size = prod(entering[:-1]), call.size("x")
    wanted = call.flags("mask") if call.wanted is None else call.wanted
    of_input, of_weight, of_bias = (*wanted, False, False, False)[:3]
    return (
        *([matmul(rows, k, n, size, kind="linear", part="dgrad")] if of_input else []),
        *([matmul(n, k, rows, size, kind="linear", part="wgrad")] if of_weight else []),
        *([bias_grad(rows, n, size)] if of_bias else []),
    )


@function("bias_grad")
def last_bias_grad(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, its channels last."""
    gradient = call.shape("dy")
    if not gradient:
        raise UncountableError("input 0: unexpected rank 0")
    return (bias_grad(prod(gradient[:-1]), gradient[-1], call.size("dy")),)


@function("outer")
def outer(call: Call) -> tuple[Cost, ...]:
    """[m] and [n]: m·n products of one term, without additions."""
    (m,), (n,), size = call.shape("x", 1), call.shape("w", 1), call.size("x")
    moved = compulsory(Operand(m, size), Operand(n, size), Operand(m * n, size))
    return (Cost("outer", "forward", m * n, moved, "elementwise.mul"),)


@function("tf_matmul", "tf_batched_matmul")
def tf_matmul(call: Call) -> tuple[Cost, ...]:
    """Two matrices or broadcast batches of them, either transposed or not, and a bias.

    Whether an operand is transposed is an attribute, which is not recorded: the inner extent occurs
    in both operands. A call with several possible readings is refused.
    """
    batched = call.formula == "tf_batched_matmul"
    left, right = (call.shape(name, *(() if batched else (2,))) for name in ("x", "w"))
    if min(len(left), len(right)) < 2:
        raise UncountableError("vector operand")
    output = call.output[-2:] if call.output is not None and len(call.output) > 1 else None
    readings = {
        (m, n, k)
        for m, k in (left[-2:], left[:-3:-1])
        for inner, n in (right[-2:], right[:-3:-1])
        if k == inner and (output is None or (m, n) == output)
    }
    # Transposed readings of square operands are the same product.
    if len({m * n * k for m, n, k in readings}) != 1:
        reason = "do not match" if not readings else "are ambiguous"
        raise UncountableError(f"matrix shapes {reason}")
    kind: MatmulKind = "linear" if call.has("bias") else "matmul"
    return (
        matmul(
            *(*min(readings), call.size("x")),
            batch=prod(broadcast(left[:-2], right[:-2])),
            left=prod(left),
            right=prod(right),
            addend=call.elements("bias") if call.has("bias") else 0,
            kind="batched_matmul" if batched else kind,
        ),
    )


@function("products")
def products(call: Call) -> tuple[Cost, ...]:
    """A sum of products of extents, as the row writes it: `2*m*k*n` of `mk nk`, a letter each."""
    extents: dict[str, int] = {}
    for letters in call.at:
        for letter, extent in zip(letters, call.shape(letters, len(letters)), strict=True):
            _agree(extents.setdefault(letter, extent) == extent)
    flops = sum(
        prod(extents[factor] if factor in extents else int(factor) for factor in term.split("*"))
        for term in call.formula.replace(" ", "").split("+")
    )
    return (Cost("products", "forward", flops, None, call.formula),)


def _matrix(call: Call, operand: str, *ranks: int) -> Shape:
    """Return the shape of an operand, transposed where the call says so."""
    shape = call.shape(operand, *ranks)
    flag = f"trans_{operand}"
    if flag in call.at and call.flag(flag):
        return (*shape[:-2], shape[-1], shape[-2])
    return shape


def _agree(agree: bool) -> None:
    if not agree:
        raise UncountableError("matrix shapes do not match")
