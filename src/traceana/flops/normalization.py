"""Normalizations: batch, layer, group, instance, root mean square, local response."""

from __future__ import annotations

from math import prod

import msgspec

from traceana.flops.call import Call
from traceana.flops.cost import Cost, Operand, UncountableError, compulsory
from traceana.flops.registry import formula, function


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


@function("batch_norm", "batch_norm_training", "batch_norm_inference")
def batch_norm(call: Call) -> tuple[Cost, ...]:
    """Count a normalization by channel: statistics of the batch, or known ones."""
    x = _by_channel(call)
    if call.formula == "batch_norm":
        trained = _trained(call)
    else:
        trained = call.formula == "batch_norm_training"
    return ((training if trained else inference)(x, "batch_norm"),)


@function("batch_norm_backward")
def batch_norm_backward(call: Call) -> tuple[Cost, ...]:
    """Count the gradients; operators without a flag run in training only."""
    trained = _trained(call) if "training" in call.at else call.training is not False
    return (batch_backward(_by_channel(call), "batch_norm", trained),)


def _trained(call: Call) -> bool:
    if call.scalars and "training" in call.at:
        return call.flag("training")
    if call.training is not None:
        return call.training
    # TensorFlow gives no averages in training, or the running ones.
    if call.has("mean") and call.shape("mean") == (0,):
        return True
    raise UncountableError("training flag not recorded")


def _by_channel(call: Call) -> Normalized:
    shape = call.shape("x")
    if len(shape) < 2:
        raise UncountableError(f"input {call.position('x')}: unexpected rank {len(shape)}")
    weight = call.elements("w") if call.has("w") else 0
    # Statistics are in single precision where the input is in half precision.
    size = call.size("w" if weight else "x")
    return Normalized(prod(shape), weight, weight or shape[1], call.size("x"), size)


@function("layer_norm")
def layer_norm(call: Call) -> tuple[Cost, ...]:
    """Count a normalization of the rows."""
    return (training(_layer(call), "layer_norm"),)


@function("layer_norm_backward")
def layer_norm_backward(call: Call) -> tuple[Cost, ...]:
    """Count the gradients of a normalization of the rows."""
    return (layer_backward(_layer(call), "layer_norm"),)


def _layer(call: Call) -> Normalized:
    shape = call.shape("x")
    affine = call.has("w")
    weight = call.elements("w") if affine else 0
    if "means" in call.at:
        rows = call.elements("means")
    elif weight:
        rows = prod(shape) // weight
    else:
        rows = prod(shape[: len(shape) - len(call.integers("extents"))])
    return Normalized(prod(shape), weight, rows, call.size("x"), call.size("w" if affine else "x"))


@function("group_norm", "group_norm_backward")
def group_norm(call: Call) -> tuple[Cost, ...]:
    """Count a normalization by groups of channels; statistics are means [N, g]."""
    shape = call.shape("x")
    weight = call.elements("w") if call.has("w") else 0
    size = call.size("w" if weight else "x")
    groups = None
    if "means" in call.at:
        groups = call.shape("means")[-1] if call.has("means") and call.shape("means") else None
    elif call.scalars:
        groups = call.extents("groups", 1)[0]
    if groups is None or not shape:
        raise UncountableError("group count not recorded")
    x = Normalized(prod(shape), weight, shape[0] * groups, call.size("x"), size)
    of = training if call.formula == "group_norm" else layer_backward
    return (of(x, "group_norm"),)


@function("rms_norm")
def rms_norm(call: Call) -> tuple[Cost, ...]:
    """Count a normalization by the root mean square."""
    weight = call.elements("w") if call.has("w") else 0
    size = call.size("w") if weight else None
    return (root_mean_square(Normalized(call.elements("x"), weight, 0, call.size("x"), size)),)


@function("local_response_norm", "local_response_norm_backward")
def lrn(call: Call) -> tuple[Cost, ...]:
    """Count a local response normalization; the number of channels is outside the call."""
    if call.window is None or len(call.window) != 1:
        raise UncountableError("LRN size not recorded")
    of = local_response if call.formula == "local_response_norm" else local_response_backward
    return (of(call.elements("x"), call.window[0], call.size("x")),)
