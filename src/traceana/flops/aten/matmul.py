"""PyTorch's matrix products: mm, addmm, bmm, baddbmm, matmul, linear, mv, dot and their kin."""

from __future__ import annotations

from math import prod

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, Shape, UncountableError, compulsory
from traceana.flops.neutral.broadcast import broadcast
from traceana.flops.neutral.matmul import MatmulKind, bias_grad, matmul
from traceana.flops.registry import operator


@operator("aten::mm", "aten::_int_mm", "aten::_scaled_mm")
def mm(call: Call) -> tuple[Cost, ...]:
    """[m, k] · [k, n]."""
    return _product(call, 0, 1, None)


@operator("aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::sspaddmm")
def addmm(call: Call) -> tuple[Cost, ...]:
    """An addend, [m, k] · [k, n]."""
    return _product(call, 1, 2, 0, "linear")


@operator("aten::bmm")
def bmm(call: Call) -> tuple[Cost, ...]:
    """[b, m, k] · [b, k, n]."""
    return _product(call, 0, 1, None, "batched_matmul")


@operator("aten::baddbmm", "aten::baddbmm_", "aten::_baddbmm_mkl_")
def baddbmm(call: Call) -> tuple[Cost, ...]:
    """An addend, [b, m, k] · [b, k, n]."""
    return _product(call, 1, 2, 0, "batched_matmul")


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
        raise UncountableError("a matrix product of a scalar")
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


@operator("aten::linear_backward")
def linear_backward(call: Call) -> tuple[Cost, ...]:
    """Input […, k], gradient […, n], weight [n, k], and the mask of the gradients wanted."""
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
    """[m] and [n]: m·n products of one term, which take no addition."""
    (m,), (n,) = call.shape(0, 1), call.shape(1, 1)
    size = call.size(0)
    moved = compulsory(Operand(m, size), Operand(n, size), Operand(m * n, size))
    return (Cost("outer", "forward", m * n, moved, "elementwise.mul"),)


def _product(
    call: Call, left: int, right: int, addend: int | None, kind: MatmulKind = "matmul"
) -> tuple[Cost, ...]:
    (*lefts, m, k), (*rights, inner, n) = _matrices(call, left), _matrices(call, right)
    _agree(k == inner and lefts == rights)
    # baddbmm with beta 0 reads no addend; the trace does not always say, so it counts if given.
    added = call.elements(addend) if addend is not None and call.has(addend) else 0
    return (
        matmul(
            m,
            n,
            k,
            call.size(left),
            batch=prod(lefts),
            addend=added,
            output_size=call.size(addend) if addend is not None else None,
            kind=kind,
        ),
    )


def _matrices(call: Call, position: int) -> Shape:
    return call.shape(position, 3) if "bmm" in call.name else call.shape(position, 2)


def _agree(agree: bool) -> None:
    if not agree:
        raise UncountableError("the extents of the matrices do not agree")
