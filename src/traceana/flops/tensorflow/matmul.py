"""TensorFlow's matrix products.

Whether an operand is transposed is an attribute, which is not recorded: the extents tell it, for
the inner one occurs in both. Where several readings would do and differ, the call is refused.
"""

from __future__ import annotations

from math import prod

from traceana.flops.call import Call
from traceana.flops.model import Cost, Shape, UncountableError
from traceana.flops.neutral.broadcast import broadcast
from traceana.flops.neutral.matmul import MatmulKind, matmul
from traceana.flops.registry import operator


@operator("MatMul", "_MklMatMul", "_FusedMatMul", "_MklFusedMatMul", "_MklNativeFusedMatMul")
def product(call: Call) -> tuple[Cost, ...]:
    """Two matrices, either transposed or not, and of a fused one a bias."""
    left, right = call.shape(0, 2), call.shape(1, 2)
    m, n, k = _extents(left, right, call.output)
    fused = "Fused" in call.name and call.has(2)
    addend = call.elements(2) if fused else 0
    kind: MatmulKind = "linear" if fused else "matmul"
    return (matmul(m, n, k, call.size(0), addend=addend, kind=kind),)


@operator("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "_MklBatchMatMulV2")
def batched(call: Call) -> tuple[Cost, ...]:
    """Two batches of matrices, either transposed or not, broadcast against each other."""
    left, right = call.shape(0), call.shape(1)
    if min(len(left), len(right)) < 2:
        raise UncountableError("a matrix product of a vector")
    output = call.output[-2:] if call.output is not None and len(call.output) > 1 else None
    m, n, k = _extents(left[-2:], right[-2:], output)
    batch = prod(broadcast(left[:-2], right[:-2]))
    lefts, rights = prod(left), prod(right)
    return (
        matmul(m, n, k, call.size(0), batch=batch, left=lefts, right=rights, kind="batched_matmul"),
    )


def _extents(left: Shape, right: Shape, output: Shape | None) -> tuple[int, int, int]:
    found = {
        (m, n, k)
        for m, k in ((left[0], left[1]), (left[1], left[0]))
        for inner, n in ((right[0], right[1]), (right[1], right[0]))
        if k == inner and (output is None or (m, n) == output)
    }
    # Transposed readings of square operands are the same product.
    if len({m * n * k for m, n, k in found}) != 1:
        reason = "do not agree" if not found else "agree in more than one way"
        raise UncountableError(f"the extents of the matrices {reason}")
    return min(found)
