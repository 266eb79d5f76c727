"""Scaled dot-product attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from traceana.flops.model import Cost, Operand, UncountableError, compulsory
from traceana.flops.registry import formula

Causal: TypeAlias = Literal["no", "top left", "bottom right"]
"""Where the diagonal of a causal mask begins or ends."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The extents of one attention: batch, heads, sequence lengths, widths of a head.

    ``key_heads`` may be fewer than ``heads`` (grouped-query attention): each is then used by
    several heads of the query. ``causal`` is ``None`` where it was not recorded. Raises
    :class:`UncountableError` where the heads do not divide.
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
            raise UncountableError("the heads of query and key do not go together")

    @property
    def pairs(self) -> int:
        """The scores: one for each head, query and key."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def masked(self) -> int | None:
        """The scores that a causal mask leaves out; None where it is not known."""
        if self.causal is None:
            return None
        length = min(self.queries, self.keys)
        kept = length * (length + 1) // 2
        match self.causal:
            case "no":
                return 0
            case "top left":
                # Query i sees keys 0 to i: all of them from the last key on.
                kept += (self.queries - length) * self.keys
            case "bottom right":
                # The last query sees all keys; what is before the first key sees none.
                kept += (self.keys - length) * self.queries
        return self.pairs - self.batch * self.heads * kept

    def skipped(self, each: int) -> int | None:
        """Return ``each`` FLOPs for each of the masked scores; None where not known."""
        return None if self.masked is None else each * self.masked

    def operands(self, size: int | None) -> tuple[Operand, Operand, Operand, Operand]:
        """Return query, key, value and output."""
        query = self.batch * self.heads * self.queries
        key = self.batch * self.key_heads * self.keys
        elements = (
            query * self.width,
            key * self.width,
            key * self.value_width,
            query * self.value_width,
        )
        q, k, v, o = (Operand(one, size) for one in elements)
        return q, k, v, o


@formula("attention.forward")
def forward(attention: Attention, size: int | None) -> Cost:
    """2 · b · h · L · S · (E + Eᵥ): the products Q·Kᵀ and P·V.

    L·S scores of E multiply-accumulates each, L·Eᵥ outputs of S each, for every image and head.
    The softmax between them is left out. Of causal attention this is the full square, as in
    PyTorch's counter; the executed FLOPs beside it are those of the scores that the mask keeps,
    L·(L + 1)/2 where L = S. (Kernels skip whole blocks and compute somewhat more.) Bytes: Q, K, V
    read and the output written, the scores never leaving the chip (Dao et al., FlashAttention,
    2022).
    """
    each = 2 * (attention.width + attention.value_width)
    moved = compulsory(*attention.operands(size))
    return Cost(
        "attention", "forward", each * attention.pairs, moved, "attention.forward",
        attention.skipped(each),
    )  # fmt: skip


@formula("attention.backward")
def backward(attention: Attention, size: int | None) -> Cost:
    """2 · b · h · L · S · (3E + 2Eᵥ): five products, of which the first recomputes the scores.

    S = Q·Kᵀ again (E), dP = dO·Vᵀ (Eᵥ), dV = Pᵀ·dO (Eᵥ), dQ = dS·K (E), dK = dSᵀ·Q (E); Dao et
    al., FlashAttention (2022), algorithm 4. A causal mask as in the forward pass. Reads Q, K, V, O
    and dO, writes dQ, dK and dV.
    """
    each = 2 * (3 * attention.width + 2 * attention.value_width)
    query, key, value, output = attention.operands(size)
    moved = compulsory(query, key, value, output, output, query, key, value)
    return Cost(
        "attention", "backward", each * attention.pairs, moved, "attention.backward",
        attention.skipped(each),
    )  # fmt: skip
