"""Normalizations: batch, layer, group, instance, root mean square, local response."""

from __future__ import annotations

from math import prod

import msgspec

from traceana.flops.call import Call
from traceana.flops.cost import Cost, Operand, UncountableError, compulsory
from traceana.flops.registry import formula, operator


class Normalized(msgspec.Struct, frozen=True):
    """A normalized tensor: its elements, the elements of w (and of b), its statistics.

    ``parameters`` is 0 without w; ``statistics`` counts the means (and the variances).
    ``size`` is that of an element, ``statistics_size`` of a statistic and a parameter.
    """

    elements: int
    parameters: int
    statistics: int
    size: int | None
    statistics_size: int | None

    @property
    def image(self) -> Operand:
        """The input, the output or their gradient."""
        return Operand(self.elements, self.size)

    def vectors(self, count: int, of: int) -> Operand:
        """Return ``count`` vectors of ``of`` elements each."""
        return Operand(count * of, self.statistics_size)


@formula("normalization.training")
def training(x: Normalized, kind: str) -> Cost:
    """8 per element, 6 without w and b: statistics of the batch, then normalization.

    Mean: 1 addition. Variance: subtract, square, accumulate: 3. x̂ = (x - mean)·r: 2.
    w·x̂ + b: 2. Work per statistic (r = 1/√variance, running averages) is left out.
    Ioffe and Szegedy, Batch Normalization (2015), algorithm 1; Ba et al., Layer
    Normalization (2016). Reads the input once, w and b; writes the output, means and variances.
    """
    moved = compulsory(x.image, x.image, x.vectors(2, x.parameters), x.vectors(2, x.statistics))
    flops = x.elements * (8 if x.parameters else 6)
    return Cost(kind, "forward", flops, moved, "normalization.training")


@formula("normalization.inference")
def inference(x: Normalized, kind: str) -> Cost:
    """2 per element: with known statistics a·x + b, with a and b of the channel.

    Reads the input, w, b, means and variances; writes the output.
    """
    moved = compulsory(x.image, x.image, x.vectors(2, x.parameters), x.vectors(2, x.statistics))
    return Cost(kind, "forward", 2 * x.elements, moved, "normalization.inference")


@formula("normalization.batch_backward")
def batch_backward(x: Normalized, kind: str, trained: bool = True) -> Cost:
    """9 per element, 6 with fixed statistics: gradients of input, w and b.

    x̂ again: 2. db = Σdy: 1. dw = Σdy·x̂: 2. dx = w·r·(dy - db/m - x̂·dw/m), the factors once per
    channel: 4; with fixed statistics dx = w·r·dy: 1. Ioffe and Szegedy (2015), section 3. Reads the
    input, dy, w, means and variances; writes dx, dw and db.
    """
    moved = compulsory(
        x.image, x.image, x.image, x.vectors(3, x.parameters), x.vectors(2, x.statistics)
    )
    flops = x.elements * (9 if trained else 6)
    return Cost(kind, "backward", flops, moved, "normalization.batch_backward")


@formula("normalization.layer_backward")
def layer_backward(x: Normalized, kind: str) -> Cost:
    """13 per element, 9 without w and b: gradients of input, w and b; w differs within a row.

    x̂ again: 2. db = Σdy: 1. dw = Σdy·x̂: 2. g = w·dy: 1. The row's Σg and Σg·x̂: 3.
    dx = r·(g - Σg/m - x̂·Σ(g·x̂)/m): 4. Without w and b: 2 + 3 + 4. Ba et al. (2016). Reads the
    input, dy, w, means and r; writes dx, dw and db.
    """
    moved = compulsory(
        x.image, x.image, x.image, x.vectors(3, x.parameters), x.vectors(2, x.statistics)
    )
    flops = x.elements * (13 if x.parameters else 9)
    return Cost(kind, "backward", flops, moved, "normalization.layer_backward")


@formula("normalization.rms")
def root_mean_square(x: Normalized, kind: str = "rms_norm") -> Cost:
    """4 per element, 3 without w: x · (mean of x²)^-½ · w.

    Square and accumulate: 2; two products. Zhang and Sennrich, Root Mean Square Layer
    Normalization (2019). Reads the input and w; writes the output.
    """
    moved = compulsory(x.image, x.image, x.vectors(1, x.parameters))
    flops = x.elements * (4 if x.parameters else 3)
    return Cost(kind, "forward", flops, moved, "normalization.rms")


@formula("normalization.local_response")
def local_response(elements: int, neighbours: int, size: int | None) -> Cost:
    """n + 5 per element: x · (k + a/n · Σx²)^-b over n neighbouring channels.

    The square: 1. Its sum over n channels: n additions (the windows at the edges count in full).
    Scale and shift: 2. The power: 1. The product: 1. Krizhevsky et al. (2012), section 3.3. Reads
    the input, writes the output.
    """
    image = Operand(elements, size)
    flops = elements * (neighbours + 5)
    moved = compulsory(image, image)
    return Cost("local_response_norm", "forward", flops, moved, "normalization.local_response")


@formula("normalization.local_response_backward")
def local_response_backward(elements: int, neighbours: int, size: int | None) -> Cost:
    """2n + 10 per element: dx = dy·s^-b - (2ab/n)·x · Σ dy·y/s, s = k + a/n · Σx².

    s again: 1 + n + 2. dy·s^-b: 2. dy·y/s: 2. Its sum over n channels: n. Times x, times the
    constant, subtracted: 3. The derivative of the formula of Krizhevsky et al. (2012), section
    3.3. Reads input, output and dy, writes dx.
    """
    image = Operand(elements, size)
    flops = elements * (2 * neighbours + 10)
    moved = compulsory(image, image, image, image)
    name = "normalization.local_response_backward"
    return Cost("local_response_norm", "backward", flops, moved, name)


# PyTorch's operators.


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
    """Input [N, C, …], gamma, beta, running mean and variance, which are updated."""
    return (training(_by_channel(call, 0, 1), "batch_norm"),)


@operator("aten::_batch_norm_no_update", "aten::_native_batch_norm_legit_no_training")
def batch_norm_inference(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …], gamma, beta, running mean and variance, which are not updated."""
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
    """Input, the normalized extents, gamma, beta."""
    return (training(_layer(call, 0, 2), "layer_norm"),)


@operator("aten::native_layer_norm")
def native_layer_norm(call: Call) -> tuple[Cost, ...]:
    """Input, the normalized extents, gamma, beta."""
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
    """Input, the normalized extents, gamma."""
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
    raise UncountableError("training flag not recorded")


def _by_channel(call: Call, at: int, gamma: int) -> Normalized:
    shape = call.shape(at)
    if len(shape) < 2:
        raise UncountableError(f"input {at}: unexpected rank {len(shape)}")
    weight = call.elements(gamma) if call.has(gamma) else 0
    # Statistics are in single precision where the input is in half precision.
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
        raise UncountableError("group count not recorded")
    return Normalized(prod(shape), weight, shape[0] * groups, call.size(at), size)


# TensorFlow's operators.


@operator("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def tf_batch_norm(call: Call) -> tuple[Cost, ...]:
    """Image, gamma, beta, mean, variance; the last two can be empty in training."""
    gamma = call.elements(1)
    x = Normalized(call.elements(0), gamma, gamma, call.size(0), call.size(1))
    trained = call.training
    if trained is None and call.has(3) and call.shape(3) == (0,):
        trained = True
    if trained is None:
        # Running averages are given in training too.
        raise UncountableError("training flag not recorded")
    return ((training if trained else inference)(x, "batch_norm"),)


@operator("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def tf_batch_norm_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, image, gamma, and saved values of the forward pass."""
    gamma = call.elements(2)
    x = Normalized(call.elements(1), gamma, gamma, call.size(1), call.size(2))
    return (batch_backward(x, "batch_norm", call.training is not False),)


@operator("LRN")
def tf_lrn(call: Call) -> tuple[Cost, ...]:
    """Image; the number of summed channels is recorded outside the call."""
    return (local_response(call.elements(0), _neighbours(call), call.size(0)),)


@operator("LRNGrad")
def tf_lrn_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, image, output; the number of summed channels is outside the call."""
    return (local_response_backward(call.elements(1), _neighbours(call), call.size(1)),)


def _neighbours(call: Call) -> int:
    if call.window is None or len(call.window) != 1:
        raise UncountableError("LRN size not recorded")
    return call.window[0]
