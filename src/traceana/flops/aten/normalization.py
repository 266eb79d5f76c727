"""PyTorch's normalizations: batch, layer, group, instance, RMS; forward and backward."""

from __future__ import annotations

from math import prod

from traceana.flops.call import Call
from traceana.flops.model import Cost, UncountableError
from traceana.flops.neutral.normalization import (
    Normalized,
    batch_backward,
    inference,
    layer_backward,
    root_mean_square,
    training,
)
from traceana.flops.registry import operator


@operator(
    "aten::batch_norm",
    "aten::_batch_norm_impl_index",
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::_native_batch_norm_legit",
)
def batch_norm(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …], gamma, beta, running mean, running variance, whether training."""
    x = _by_channel(call, 0, 1)
    return (_forward(x, "batch_norm", _training(call, 5)),)


@operator("aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional")
def batch_norm_training(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …], gamma, beta, running mean and variance, which are brought up to date."""
    return (training(_by_channel(call, 0, 1), "batch_norm"),)


@operator("aten::_batch_norm_no_update", "aten::_native_batch_norm_legit_no_training")
def batch_norm_inference(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …], gamma, beta, running mean and variance, which are used as they are."""
    return (inference(_by_channel(call, 0, 1), "batch_norm"),)


@operator("aten::native_batch_norm_backward")
def native_batch_norm_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input [N, C, …], gamma, four statistics, whether training."""
    return (batch_backward(_by_channel(call, 1, 2), "batch_norm", _training(call, 7)),)


@operator("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward")
def library_batch_norm_backward(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …], the output's gradient, gamma: these libraries run in training only."""
    return (batch_backward(_by_channel(call, 0, 2), "batch_norm"),)


@operator("aten::layer_norm")
def layer_norm(call: Call) -> tuple[Cost, ...]:
    """Input, the extents that are normalized, gamma, beta."""
    return (training(_layer(call, 0, 2), "layer_norm"),)


@operator("aten::native_layer_norm")
def native_layer_norm(call: Call) -> tuple[Cost, ...]:
    """Input, the extents that are normalized, gamma, beta."""
    return (training(_layer(call, 0, 2), "layer_norm"),)


@operator("aten::native_layer_norm_backward")
def native_layer_norm_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input, extents, means, sigma⁻¹, gamma, beta."""
    return (layer_backward(_layer(call, 1, 5, means=3), "layer_norm"),)


@operator("aten::group_norm")
def group_norm(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …], the number of groups, gamma, beta."""
    groups = call.extents(1, 1)[0] if call.scalars else None
    return (training(_groups(call, 0, 2, groups), "group_norm"),)


@operator("aten::native_group_norm")
def native_group_norm(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …], gamma, beta, N, C, the positions, the number of groups."""
    groups = call.extents(6, 1)[0] if call.scalars else None
    return (training(_groups(call, 0, 1, groups), "group_norm"),)


@operator("aten::native_group_norm_backward")
def native_group_norm_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input [N, C, …], means [N, g], sigma⁻¹, gamma."""
    groups = call.shape(2)[-1] if call.has(2) and call.shape(2) else None
    return (layer_backward(_groups(call, 1, 4, groups), "group_norm"),)


@operator("aten::rms_norm", "aten::_fused_rms_norm")
def rms_norm(call: Call) -> tuple[Cost, ...]:
    """Input, the extents that are normalized, gamma."""
    x = call.shape(0)
    gamma = call.elements(2) if call.has(2) else 0
    normalized = Normalized(prod(x), gamma, 0, call.size(0), call.size(2) if gamma else None)
    return (root_mean_square(normalized),)


def _forward(x: Normalized, kind: str, trained: bool) -> Cost:
    return training(x, kind) if trained else inference(x, kind)


def _training(call: Call, position: int) -> bool:
    if call.scalars:
        return call.flag(position)
    if call.training is not None:
        return call.training
    raise UncountableError("whether it was training was not recorded")


def _by_channel(call: Call, at: int, gamma: int) -> Normalized:
    shape = call.shape(at)
    if len(shape) < 2:
        raise UncountableError(f"input {at} has {len(shape)} dimensions")
    weight = call.elements(gamma) if call.has(gamma) else 0
    # Statistics are kept in single precision where the input is of half.
    statistics_size = call.size(gamma) if weight else call.size(at)
    return Normalized(prod(shape), weight, shape[1], call.size(at), statistics_size)


def _layer(call: Call, at: int, gamma: int, means: int | None = None) -> Normalized:
    shape = call.shape(at)
    affine = call.has(gamma)
    weight = call.elements(gamma) if affine else 0
    if means is not None:
        rows: int | None = call.elements(means)
    elif affine and weight:
        rows = prod(shape) // weight
    else:
        normalized = len(call.integers(1))
        rows = prod(shape[: len(shape) - normalized])
    size = call.size(gamma) if affine else call.size(at)
    return Normalized(prod(shape), weight, rows or 0, call.size(at), size)


def _groups(call: Call, at: int, gamma: int, groups: int | None) -> Normalized:
    shape = call.shape(at)
    weight = call.elements(gamma) if call.has(gamma) else 0
    size = call.size(gamma) if weight else call.size(at)
    if groups is None or not shape:
        raise UncountableError("the number of groups was not recorded")
    return Normalized(prod(shape), weight, shape[0] * groups, call.size(at), size)
