"""Matrix products, batched or not: derivation of their count, and the frameworks' operators."""

from __future__ import annotations

from math import isqrt, prod
from typing import Literal

from traceana.flops.call import Call, Contraction, picked
from traceana.flops.cost import (
    Cost,
    Count,
    Operand,
    Part,
    Shape,
    UncountableError,
    broadcast,
    compulsory,
)
from traceana.flops.registry import formula, operator

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
    return Cost(kind, part, 2 * batch * m * n * k, moved, "matmul")


@formula("matmul.bias_grad")
def bias_grad(rows: int, columns: int, size: int | None) -> Cost:
    """m · n: the gradient of a linear layer's output, summed over its m rows.

    One addition per element. Reads m·n elements, writes n sums.
    """
    moved = compulsory(Operand(rows * columns, size), Operand(columns, size))
    return Cost("linear", "bias_grad", rows * columns, moved, "matmul.bias_grad")


# PyTorch's operators.


@operator("aten::mm", "aten::_int_mm", "aten::_scaled_mm")
def mm(call: Call) -> tuple[Cost, ...]:
    """[m, k] · [k, n]."""
    return _aten_product(call, 0, 1, None)


@operator("aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::sspaddmm")
def addmm(call: Call) -> tuple[Cost, ...]:
    """An addend, [m, k] · [k, n]."""
    return _aten_product(call, 1, 2, 0, "linear")


@operator("aten::bmm")
def bmm(call: Call) -> tuple[Cost, ...]:
    """[b, m, k] · [b, k, n]."""
    return _aten_product(call, 0, 1, None, "batched_matmul")


@operator("aten::baddbmm", "aten::baddbmm_", "aten::_baddbmm_mkl_")
def baddbmm(call: Call) -> tuple[Cost, ...]:
    """An addend, [b, m, k] · [b, k, n]."""
    return _aten_product(call, 1, 2, 0, "batched_matmul")


@operator("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_mm(call: Call) -> tuple[Cost, ...]:
    """Products of several groups, as of the experts of a mixture: [m, k] · [g, k, n], by rows of
    the left; [g, m, k] · [k, n], by columns of the right; [m, k] · [k, n], by the terms of g sums.

    The sizes of the groups are on the device; they add up to the whole extent.
    """
    left, right = call.shape(0, 2, 3), call.shape(1, 2, 3)
    (m, k), (inner, n), size = left[-2:], right[-2:], call.size(0)
    _agree(k == inner and (len(left) != 3 or len(right) != 3 or left[0] == right[0]))
    batch = left[0] if len(left) == len(right) == 3 else 1
    groups = (
        call.shape(4 if "scaled" in call.name else 2, 1)[0] if len(left) + len(right) == 4 else 1
    )
    return (
        matmul(
            m,
            n,
            k * call.values(0),
            size,
            batch=batch,
            left=prod(left),
            right=prod(right),
            written=groups * batch * m * n,
            kind="batched_matmul",
        ),
    )


@operator("aten::addbmm", "aten::addbmm_")
def addbmm(call: Call) -> tuple[Cost, ...]:
    """An addend [m, n], and the sum of [b, m, k] · [b, k, n] over the batch: k·b terms each."""
    (batch, m, k), (other, inner, n) = call.shape(1, 3), call.shape(2, 3)
    _agree(batch == other and k == inner)
    return (matmul(m, n, k * batch, call.size(1), addend=call.elements(0)),)


@operator("aten::matmul")
def broadcast_matmul(call: Call) -> tuple[Cost, ...]:
    """Vectors, matrices or batches of them, broadcast as numpy.matmul does."""
    left, right = call.shape(0), call.shape(1)
    if not left or not right:
        raise UncountableError("scalar operand")
    if len(left) == 1 and len(right) == 1:
        return dot(call)
    m = left[-2] if len(left) > 1 else 1
    n = right[-1] if len(right) > 1 else 1
    inner = right[-2] if len(right) > 1 else right[0]
    _agree(left[-1] == inner)
    batch = prod(broadcast(left[:-2], right[:-2]))
    size = call.size(0)
    if len(right) <= 2:
        # One matrix for the whole batch: the batch's rows are rows of one product.
        kind: MatmulKind = "matmul" if len(right) == 2 else "matrix_vector"
        return (matmul(batch * m, n, inner, size, kind=kind),)
    lefts, rights = prod(left), prod(right)
    return (
        matmul(m, n, inner, size, batch=batch, left=lefts, right=rights, kind="batched_matmul"),
    )


@operator("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise")
def linear(call: Call) -> tuple[Cost, ...]:
    """[…, k], a weight [n, k], and a bias."""
    rows = call.shape(0)
    weight = call.shape(1, 1, 2)
    _agree(bool(rows) and rows[-1] == weight[-1])
    n = weight[0] if len(weight) == 2 else 1
    addend = call.elements(2) if call.has(2) else 0
    return (matmul(prod(rows[:-1]), n, rows[-1], call.size(0), addend=addend, kind="linear"),)


@operator("mkl::_mkl_linear")
def mkl_linear(call: Call) -> tuple[Cost, ...]:
    """[…, k], the packed weight, the weight [n, k], a bias or nothing, and the number of rows."""
    rows, (n, k) = call.shape(0), call.shape(2, 2)
    _agree(bool(rows) and rows[-1] == k)
    addend = call.elements(3) if call.has(3) else 0
    return (matmul(prod(rows[:-1]), n, k, call.size(0), addend=addend, kind="linear"),)


@operator("aten::linear_backward")
def linear_backward(call: Call) -> tuple[Cost, ...]:
    """Input […, k], gradient […, n], weight [n, k], and the mask of the requested gradients."""
    entering, gradient, (n, k) = call.shape(0), call.shape(1), call.shape(2, 2)
    _agree(bool(entering) and entering[-1] == k and gradient == (*entering[:-1], n))
    rows, size = prod(entering[:-1]), call.size(0)
    of_input, of_weight, of_bias = (*call.flags(3), False, False, False)[:3]
    parts: list[Cost] = []
    if of_input:
        parts.append(matmul(rows, k, n, size, kind="linear", part="dgrad"))
    if of_weight:
        parts.append(matmul(n, k, rows, size, kind="linear", part="wgrad"))
    if of_bias:
        parts.append(bias_grad(rows, n, size))
    return tuple(parts)


@operator("aten::mv")
def mv(call: Call) -> tuple[Cost, ...]:
    """[m, k] · [k]."""
    (m, k), (inner,) = call.shape(0, 2), call.shape(1, 1)
    _agree(k == inner)
    return (matmul(m, 1, k, call.size(0), kind="matrix_vector"),)


@operator("aten::addmv", "aten::addmv_")
def addmv(call: Call) -> tuple[Cost, ...]:
    """An addend, [m, k] · [k]."""
    (m, k), (inner,) = call.shape(1, 2), call.shape(2, 1)
    _agree(k == inner)
    cost = matmul(m, 1, k, call.size(1), addend=call.elements(0), kind="matrix_vector")
    return (cost,)


@operator("aten::dot", "aten::vdot")
def dot(call: Call) -> tuple[Cost, ...]:
    """[k] · [k]."""
    (k,), (inner,) = call.shape(0, 1), call.shape(1, 1)
    _agree(k == inner)
    return (matmul(1, 1, k, call.size(0), kind="dot"),)


@operator("aten::outer", "aten::ger")
def outer(call: Call) -> tuple[Cost, ...]:
    """[m] and [n]: m·n products of one term, without additions."""
    (m,), (n,) = call.shape(0, 1), call.shape(1, 1)
    size = call.size(0)
    moved = compulsory(Operand(m, size), Operand(n, size), Operand(m * n, size))
    return (Cost("outer", "forward", m * n, moved, "elementwise.mul"),)


def _aten_product(
    call: Call, left: int, right: int, addend: int | None, kind: MatmulKind = "matmul"
) -> tuple[Cost, ...]:
    (*lefts, m, k), (*rights, inner, n) = _matrices(call, left), _matrices(call, right)
    _agree(k == inner and lefts == rights)
    # baddbmm with beta 0 reads no addend; beta is not always recorded, so a given addend counts.
    added = call.elements(addend) if addend is not None and call.has(addend) else 0
    return (
        matmul(
            m,
            n,
            k * call.values(left),
            call.size(left),
            batch=prod(lefts),
            left=prod(lefts) * m * k,
            right=prod(lefts) * k * n,
            addend=added,
            output_size=call.size(addend) if addend is not None else None,
            kind=kind,
        ),
    )


def _matrices(call: Call, position: int) -> Shape:
    return call.shape(position, 3) if "bmm" in call.name else call.shape(position, 2)


def _agree(agree: bool) -> None:
    if not agree:
        raise UncountableError("matrix shapes do not match")


# TensorFlow's operators. Whether an operand is transposed is an attribute, which is not recorded:
# the inner extent occurs in both operands. A call with several possible readings is refused.


@operator("MatMul", "_MklMatMul", "_FusedMatMul", "_MklFusedMatMul", "_MklNativeFusedMatMul")
def tf_matmul(call: Call) -> tuple[Cost, ...]:
    """Two matrices, either transposed or not, and a bias of a fused one."""
    left, right = call.shape(0, 2), call.shape(1, 2)
    m, n, k = _tf_extents(left, right, call.output)
    fused = "Fused" in call.name and call.has(2)
    addend = call.elements(2) if fused else 0
    kind: MatmulKind = "linear" if fused else "matmul"
    return (matmul(m, n, k, call.size(0), addend=addend, kind=kind),)


@operator("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "_MklBatchMatMulV2")
def tf_batched_matmul(call: Call) -> tuple[Cost, ...]:
    """Two batches of matrices, either transposed or not, broadcast against each other."""
    left, right = call.shape(0), call.shape(1)
    if min(len(left), len(right)) < 2:
        raise UncountableError("vector operand")
    output = call.output[-2:] if call.output is not None and len(call.output) > 1 else None
    m, n, k = _tf_extents(left[-2:], right[-2:], output)
    batch = prod(broadcast(left[:-2], right[:-2]))
    lefts, rights = prod(left), prod(right)
    return (
        matmul(m, n, k, call.size(0), batch=batch, left=lefts, right=rights, kind="batched_matmul"),
    )


def _tf_extents(left: Shape, right: Shape, output: Shape | None) -> tuple[int, int, int]:
    found = {
        (m, n, k)
        for m, k in ((left[0], left[1]), (left[1], left[0]))
        for inner, n in ((right[0], right[1]), (right[1], right[0]))
        if k == inner and (output is None or (m, n) == output)
    }
    # Transposed readings of square operands are the same product.
    if len({m * n * k for m, n, k in found}) != 1:
        reason = "do not match" if not found else "are ambiguous"
        raise UncountableError(f"matrix shapes {reason}")
    return min(found)


# XLA's instructions, and the routines of libraries that it calls for them.


@formula("hlo.dot")
def hlo_dot(of: Contraction) -> Count:
    """2 · batch · M · N · K: every element of the output sums K products.

    K is the product of the contracted extents. Batch, M and N are the output's, in any order. The
    same applies to the routines of cuBLAS and hipBLASLt, whose configuration has the dimension
    numbers; a bias or an activation that they add is not counted.
    """
    contracted = of.attributes.lhs_contracting
    if contracted is None:
        raise UncountableError("no dimension numbers")
    return Count(2 * prod(of.output) * prod(picked(of.left, contracted)), "hlo.dot")


@formula("hlo.dot.onednn")
def hlo_onednn_matmul(of: Contraction) -> Count:
    """2 · batch · M · N · K, K from the elements of the three matrices.

    oneDNN's configuration has the transposed operands, not the contracted dimensions. With B
    matrices in each operand, |a| · |b| = B·M·K · B·K·N = |c| · B · K². For a matrix shared by the
    batch B is 1: its rows and the other's batch are one dimension.
    """
    both = len(of.left) > 2 and len(of.right) > 2
    batch = prod(of.output[:-2]) if both else 1
    size = prod(of.output)
    square, rest = divmod(prod(of.left) * prod(of.right), size * batch or 1)
    depth = isqrt(square)
    if rest or depth * depth != square:
        raise UncountableError("matrix shapes do not match")
    return Count(2 * size * depth, "hlo.dot.onednn")
