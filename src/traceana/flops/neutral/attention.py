"""Scaled dot-product attention."""

from __future__ import annotations

from dataclasses import dataclass

from traceana.flops.model import Cost, Operand, UncountableError, compulsory
from traceana.flops.registry import formula


@dataclass(frozen=True, slots=True)
class Attention:
    """The extents of one attention: batch, heads, sequence lengths, widths of a head.

    ``key_heads`` may be fewer than ``heads`` (grouped-query attention): each is then used by
    several heads of the query. Raises :class:`UncountableError` where they do not divide.
    """

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int

    def __post_init__(self) -> None:
        if self.key_heads < 1 or self.heads % self.key_heads:
            raise UncountableError("the heads of query and key do not go together")

    @property
    def pairs(self) -> int:
        """The scores: one for each head, query and key."""
        return self.batch * self.heads * self.queries * self.keys

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
    The softmax between them is left out, and a causal mask is not made use of, as in PyTorch's
    counter: a kernel that skips masked blocks executes up to half. Bytes: Q, K, V read and the
    output written, the scores never leaving the chip (Dao et al., FlashAttention, 2022).
    """
    flops = 2 * attention.pairs * (attention.width + attention.value_width)
    moved = compulsory(*attention.operands(size))
    return Cost("attention", "forward", flops, moved, "attention.forward")


@formula("attention.backward")
def backward(attention: Attention, size: int | None) -> Cost:
    """2 · b · h · L · S · (3E + 2Eᵥ): five products, of which the first recomputes the scores.

    S = Q·Kᵀ again (E), dP = dO·Vᵀ (Eᵥ), dV = Pᵀ·dO (Eᵥ), dQ = dS·K (E), dK = dSᵀ·Q (E); Dao et
    al., FlashAttention (2022), algorithm 4. Reads Q, K, V, O and dO, writes dQ, dK and dV.
    """
    flops = 2 * attention.pairs * (3 * attention.width + 2 * attention.value_width)
    query, key, value, output = attention.operands(size)
    moved = compulsory(query, key, value, output, output, query, key, value)
    return Cost("attention", "backward", flops, moved, "attention.backward")
