"""Scaled dot-product attention: its count, and the operators of PyTorch and libraries."""

from __future__ import annotations

from math import prod
from typing import Final, Literal, TypeAlias

import msgspec

from traceana.flops.call import Call, Cost, Operand, Part, UncountableError, compulsory
from traceana.flops.registry import declare, function

Causal: TypeAlias = Literal["no", "top left", "bottom right"]
"""The alignment of a causal mask's diagonal."""


class Attention(msgspec.Struct, frozen=True):
    """The extents of one attention: batch, heads, sequence lengths, widths of a head.

    ``key_heads`` may be fewer than ``heads`` (grouped-query attention): each key head is then used
    by several query heads. ``causal`` is ``None`` where it was not recorded. Raises
    :class:`UncountableError` where ``heads`` is not a multiple of ``key_heads``.
    """

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    causal: Causal | None = "no"

    def __post_init__(self) -> None:
        if self.key_heads < 1 or self.heads % self.key_heads:
            raise UncountableError("query heads not a multiple of key heads")

    @property
    def pairs(self) -> int:
        """The scores: one for each head, query and key."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def masked(self) -> int | None:
        """The scores outside a causal mask; None where the mask is unknown."""
        if self.causal is None:
            return None
        length = min(self.queries, self.keys)
        kept = length * (length + 1) // 2
        match self.causal:
            case "no":
                return 0
            case "top left":
                # Query i attends to keys 0 to i; queries after the last key attend to all keys.
                kept += (self.queries - length) * self.keys
            case "bottom right":
                # The last query attends to all keys; queries before the first key to none.
                kept += (self.keys - length) * self.queries
        return self.pairs - self.batch * self.heads * kept


declare(
    "attention.forward",
    """2 · b · h · L · S · (E + Eᵥ): the products Q·Kᵀ and P·V.

    L·S scores of E multiply-accumulates each, L·Eᵥ outputs of S each, for every image and head.
    The softmax between them is left out. For causal attention this counts all scores, as in
    PyTorch's counter; the executed FLOPs are those of the scores inside the mask, L·(L + 1)/2 where
    L = S. (Kernels skip whole blocks and compute somewhat more.) Bytes: Q, K, V are read and the
    output is written; the scores stay on the chip (Dao et al., FlashAttention, 2022).
    """,
)
declare(
    "attention.backward",
    """2 · b · h · L · S · (3E + 2Eᵥ): five products; the first recomputes the scores.

    S = Q·Kᵀ again (E), dP = dO·Vᵀ (Eᵥ), dV = Pᵀ·dO (Eᵥ), dQ = dS·K (E), dK = dSᵀ·Q (E); Dao et
    al., FlashAttention (2022), algorithm 4. A causal mask as in the forward pass. Reads Q, K, V, O
    and dO, writes dQ, dK and dV.
    """,
)


def count(attention: Attention, size: int | None, *, gradient: bool = False) -> Cost:
    """Return the cost of one attention, or of its gradient; elements are of ``size`` bytes."""
    width, value_width, masked = attention.width, attention.value_width, attention.masked
    part: Part = "backward" if gradient else "forward"
    of_query, of_value = (3, 2) if gradient else (1, 1)
    each = 2 * (of_query * width + of_value * value_width)
    # The gradient reads or writes each of the four twice: dO and O, and the others' gradients.
    queries = attention.batch * attention.heads * attention.queries
    keys = attention.batch * attention.key_heads * attention.keys
    elements = queries * (width + value_width) + keys * (width + value_width)
    return Cost(
        "attention",
        part,
        each * attention.pairs,
        compulsory(Operand((2 if gradient else 1) * elements, size)),
        f"attention.{part}",
        None if masked is None else each * masked,
    )


@function("attention", "attention_backward")
def heads_first(call: Call) -> tuple[Cost, ...]:
    """Query […, L, E], key […, S, E], value […, S, Eᵥ], heads before the sequence."""
    query, key, value = (call.shape(name) for name in "qkv")
    if min(map(len, (query, key, value))) < 2 or key[-1] != query[-1] or value[-2] != key[-2]:
        raise UncountableError("query, key and value shapes do not match")
    batches = [shape[:-3] for shape in (query, key, value)]
    heads = [shape[-3] if len(shape) > 2 else 1 for shape in (query, key, value)]
    if len(set(batches)) != 1 or heads[1] != heads[2]:
        raise UncountableError("query, key and value shapes do not match")
    extents = Attention(
        batch=prod(batches[0]),
        heads=heads[0],
        key_heads=heads[1],
        queries=query[-2],
        keys=key[-2],
        width=query[-1],
        value_width=value[-1],
        causal=_causal(call),
    )
    return (count(extents, call.size("q"), gradient=call.formula.endswith("_backward")),)


@function("sequence_attention", "sequence_attention_backward")
def heads_last(call: Call) -> tuple[Cost, ...]:
    """Query [b, L, h, E], key and value [b, S, h, E]; packed sequences are refused."""
    if call.has("packed"):
        raise UncountableError("packed sequence lengths not recorded")
    query, key, value = (call.shape(name, 4) for name in "qkv")
    (batch, queries, heads, width), (_, keys, key_heads, key_width) = query, key
    if key_width != width or value[:3] != key[:3] or key[0] != batch:
        raise UncountableError("query, key and value shapes do not match")
    extents = Attention(batch, heads, key_heads, queries, keys, width, value[3], _causal(call))
    return (count(extents, call.size("q"), gradient=call.formula.endswith("_backward")),)


_MASK_TYPES: Final[dict[int, Causal]] = {0: "no", 1: "top left", 2: "bottom right"}


def _causal(call: Call) -> Causal | None:
    """Return the causal mask, None where it was not recorded."""
    try:
        if "mask_type" in call.at:
            return _MASK_TYPES.get(call.integer("mask_type"))
        # flash-attn aligns its mask to the last key since version 2.1.
        if "causal_at_end" in call.at:
            return "bottom right" if call.flag("causal_at_end") else "no"
        return "top left" if call.flag("causal") else "no"
    except UncountableError:
        return None
