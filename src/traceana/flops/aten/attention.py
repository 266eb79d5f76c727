"""PyTorch's scaled dot-product attention and the libraries behind it, forward and backward."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, UncountableError
from traceana.flops.neutral.attention import Attention, Causal, backward, forward
from traceana.flops.registry import operator

CAUSAL_AT: Final = {
    "aten::scaled_dot_product_attention": 5,
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_fused_attention_overrideable": 5,
    "aten::_scaled_dot_product_attention_math": 5,
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": 13,
    "aten::_flash_attention_forward": 8,
    "aten::_flash_attention_backward": 11,
    "aten::_efficient_attention_forward": 9,
    "aten::_efficient_attention_backward": 14,
    "flash_attn::_flash_attn_forward": 5,
    "flash_attn::_flash_attn_backward": 11,
}
"""The input ``is_causal`` of each operator; of ``_efficient_attention`` ``custom_mask_type``."""

_MASK_TYPES: Final[dict[int, Causal]] = {0: "no", 1: "top left", 2: "bottom right"}


@operator(
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_scaled_dot_product_attention_math",
)
def scaled_dot_product(call: Call) -> tuple[Cost, ...]:
    """Query […, L, E], key […, S, E], value […, S, Eᵥ], heads before the sequence."""
    return (forward(_heads_first(call, 0), call.size(0)),)


@operator(
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
)
def scaled_dot_product_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, then query, key, value, heads before the sequence."""
    return (backward(_heads_first(call, 1), call.size(1)),)


@operator("aten::_flash_attention_forward", "aten::_efficient_attention_forward")
def fused(call: Call) -> tuple[Cost, ...]:
    """Query [b, L, h, E], key and value [b, S, h, E]; packed sequences are refused."""
    packed = 3 if "flash" in call.name else 4
    return (forward(_heads_last(call, 0, packed), call.size(0)),)


@operator("aten::_flash_attention_backward")
def fused_flash_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, query, key, value [b, S, h, E], output, logsumexp."""
    return (backward(_heads_last(call, 1, packed=6), call.size(1)),)


@operator("aten::_efficient_attention_backward")
def fused_efficient_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, query, key, value [b, S, h, E], bias, output."""
    return (backward(_heads_last(call, 1, packed=6), call.size(1)),)


@operator("flash_attn::_flash_attn_forward")
def flash_attn(call: Call) -> tuple[Cost, ...]:
    """Query [b, L, h, E], key and value [b, S, h, E], of the flash-attn package."""
    return (forward(_heads_last(call, 0, packed=None), call.size(0)),)


@operator("flash_attn::_flash_attn_backward")
def flash_attn_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, query, key, value [b, S, h, E], of the flash-attn package."""
    return (backward(_heads_last(call, 1, packed=None), call.size(1)),)


def _heads_first(call: Call, at: int) -> Attention:
    query, key, value = (call.shape(at + position) for position in range(3))
    if min(map(len, (query, key, value))) < 2 or key[-1] != query[-1] or value[-2] != key[-2]:
        raise UncountableError("the extents of query, key and value do not agree")
    batches = [shape[:-3] for shape in (query, key, value)]
    heads = [shape[-3] if len(shape) > 2 else 1 for shape in (query, key, value)]
    if len(set(batches)) != 1 or heads[1] != heads[2]:
        raise UncountableError("the extents of query, key and value do not agree")
    return Attention(
        batch=prod(batches[0]),
        heads=heads[0],
        key_heads=heads[1],
        queries=query[-2],
        keys=key[-2],
        width=query[-1],
        value_width=value[-1],
        causal=_causal(call),
    )


def _heads_last(call: Call, at: int, packed: int | None) -> Attention:
    if packed is not None and call.has(packed):
        raise UncountableError("the lengths of packed sequences are values, not shapes")
    query, key, value = (call.shape(at + position, 4) for position in range(3))
    (batch, queries, heads, width), (_, keys, key_heads, key_width) = query, key
    if key_width != width or value[:3] != key[:3] or key[0] != batch:
        raise UncountableError("the extents of query, key and value do not agree")
    return Attention(batch, heads, key_heads, queries, keys, width, value[3], _causal(call))


def _causal(call: Call) -> Causal | None:
    """Return whether the mask is causal, None where that was not recorded."""
    at = CAUSAL_AT[call.name]
    try:
        if "_efficient_attention_" in call.name and "scaled_dot" not in call.name:
            return _MASK_TYPES.get(call.integer(at))
        if not call.flag(at):
            return "no"
    except UncountableError:
        return None
    # flash-attn aligns its mask to the last key since version 2.1.
    return "bottom right" if call.name.startswith("flash_attn::") else "top left"
