"""Products, convolutions and attention of Inductor's Triton templates: ``triton_tem_fused_mm_0``.

The profiler records the arguments of the kernel: the buffers that it reads and writes, whole, in
an order that is the compiler's (an addend before the operands, what is fused with the product
behind them), with the shapes in which they were allocated. How a template reads a buffer, as a
slice or transposed, is in its code and not in the trace. What is computed follows where the
extents of the buffers allow one reading only. Source: ``torch/_inductor/select_algorithm.py``
(``TritonTemplateKernel.def_kernel``, ``KernelArgs.python_argdefs``) of PyTorch 2.13.
"""

from __future__ import annotations

import re
from itertools import combinations, permutations
from math import prod
from typing import Final

from msgspec.structs import replace

from traceana.flops import attention, convolution
from traceana.flops.attention import Attention
from traceana.flops.call import Call, Cost, Shape, UncountableError, compulsory
from traceana.flops.convolution import Convolution
from traceana.flops.matmul import matmul
from traceana.flops.registry import function

_MOST_TENSORS: Final = 10
_MOST_DIMENSIONS: Final = 5
_ATTENTION: Final = re.compile(r"flex_attention")
_CONVOLUTION: Final = re.compile(r"conv")
_BATCHED: Final = re.compile(r"bmm")
_PRODUCT: Final = re.compile(r"(?:^|_)(?:add|scaled_)?mm(?:_|$)")
_UNKNOWN: Final = "Triton template: the buffers have no extents of one product"
_AMBIGUOUS: Final = "Triton template: the buffers have the extents of several products"


@function("triton_template")
def triton_template(call: Call) -> tuple[Cost, ...]:
    """The buffers of a kernel that a template generated; its name has the fused operators."""
    if _ATTENTION.search(call.name):
        return (_attention(call),)
    if _CONVOLUTION.search(call.name):
        extents, _ = _convolution(call)
        cost = convolution.count(extents, "forward", None)
    else:
        batched = _BATCHED.search(call.name) is not None
        plain = _PRODUCT.search(call.name) is not None
        if "grouped" in call.name or batched == plain:
            raise UncountableError("Triton template: no product known by its name")
        # The one product of three of the buffers, of m·k, k·n and m·n elements.
        products = {
            batch * prod(mnk): (batch, *mnk)
            for buffers in permutations(_tensors(call), 3)
            for batch, mnk in _extents(*map(call.shape, buffers), batched=batched)
        }
        if len(products) != 1:
            raise UncountableError(_AMBIGUOUS if products else _UNKNOWN)
        ((batch, m, n, k),) = products.values()
        cost = matmul(m, n, k, None, batch=batch, kind="batched_matmul" if batched else "matmul")
    # Each buffer is read or written once.
    moved = compulsory(*map(call.operand, call.tensors()))
    return (replace(cost, bytes=moved),)


def weight_of(call: Call) -> tuple[str, Shape] | None:
    """Return ``linear`` or ``conv`` and the shape of the weight of a template's product.

    The operands are in the order of the product, the weight of a linear layer is the second, in any
    orientation, and the result is the last buffer. None where the buffers allow several, for
    products of two activations, and for attention.
    """
    try:
        if _CONVOLUTION.search(call.name):
            _, weight = _convolution(call)
            return "conv", call.shape(weight)
        if _ATTENTION.search(call.name) or not _PRODUCT.search(call.name):
            return None
        *operands, result = map(call.shape, _tensors(call))
    except UncountableError:
        return None
    weights = {
        right
        for left, right in combinations(operands, 2)
        if len(right) == 2 and _matrices(left, right, result)
    }
    return ("linear", weights.pop()) if len(weights) == 1 else None


def _extents(
    left: Shape, right: Shape, output: Shape, *, batched: bool
) -> set[tuple[int, tuple[int, int, int]]]:
    """Return the batch and m, n, k of all products ``left`` · ``right`` = ``output``.

    A batch is the first extent of all three buffers, or their first two.
    """
    if not batched:
        return {(1, extents) for extents in _matrices(left, right, output)}
    products = set()
    for first in (1, 2):
        batch = output[:first]
        if min(map(len, (left, right, output))) != first + 2:
            continue
        if left[:first] == right[:first] == batch:
            rest = _matrices(left[first:], right[first:], output[first:])
            products |= {(prod(batch), extents) for extents in rest}
    return products


def _matrices(left: Shape, right: Shape, output: Shape) -> set[tuple[int, int, int]]:
    """Return m, n, k of all readings of three buffers as m by k, k by n and m by n.

    A matrix has some dimensions of its buffer as rows and the others as columns.
    """
    of_output, of_right = _readings(output), _readings(right)
    return {
        (m, n, k)
        for m, k in _readings(left)
        for inner, n in of_right
        if inner == k and (m, n) in of_output
    }


def _readings(shape: Shape) -> set[tuple[int, int]]:
    size = prod(shape)
    rows = {prod(some) for count in range(1, len(shape)) for some in combinations(shape, count)}
    return {(count, size // count) for count in rows if count}


def _convolution(call: Call) -> tuple[Convolution, int]:
    """Return the one convolution of three of the buffers: images, filters, and their result; and
    which buffer has the filters."""
    convolutions: dict[int, tuple[Convolution, int]] = {}
    for image, weight, output in permutations(_tensors(call), 3):
        entering, filters, leaving = map(call.shape, (image, weight, output))
        if not len(entering) == len(filters) == len(leaving) >= 3 or not filters[1]:
            continue
        fits = entering[0] == leaving[0] and leaving[1] == filters[0]
        groups, rest = divmod(entering[1], filters[1])
        if fits and not rest and groups and not filters[0] % groups:
            conv = Convolution(
                entering[0], entering[1], filters[0], filters[2:], leaving[2:], entering[2:], groups
            )
            convolutions[conv.macs] = conv, weight
    if len(convolutions) != 1:
        raise UncountableError(_AMBIGUOUS if convolutions else _UNKNOWN)
    (conv_and_weight,) = convolutions.values()
    return conv_and_weight


def _attention(call: Call) -> Cost:
    """Return the attention of query, key and value, which come first: […, heads, length, width].

    Which blocks of scores its mask leaves out is in tensors whose values are not recorded.
    """
    first, *others = _tensors(call)[:3]
    query, key, value = (call.shape(position, 4) for position in (first, *others))
    if (query[0], query[3], key[:3]) != (key[0], key[3], value[:3]):
        raise UncountableError(_UNKNOWN)
    extents = Attention(
        query[0], query[1], key[1], query[2], key[2], query[3], value[3], causal=None
    )
    return attention.count(extents, call.size(first), gradient="backward" in call.name)


def _tensors(call: Call) -> list[int]:
    """Return the positions of the buffers that can be operands or results."""
    tensors = [position for position in call.tensors() if len(call.shape(position)) > 1]
    dimensions = max((len(call.shape(position)) for position in tensors), default=0)
    if not 3 <= len(tensors) <= _MOST_TENSORS or dimensions > _MOST_DIMENSIONS:
        raise UncountableError(_UNKNOWN)
    return tensors
