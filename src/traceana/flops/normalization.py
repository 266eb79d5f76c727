"""Normalizations: batch, layer, group, instance, root mean square, local response."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call, Cost, Operand, Part, UncountableError, compulsory
from traceana.flops.registry import declare, function

TRAINING: Final = declare(
    "normalization.training",
    """8 per element, 6 without w and b: statistics of the batch, then normalization.

    Mean: 1 addition. Variance: subtract, square, accumulate: 3. x̂ = (x - mean)·r: 2.
    w·x̂ + b: 2. Work per statistic (r = 1/√variance, running averages) is left out.
    Ioffe and Szegedy, Batch Normalization (2015), algorithm 1; Ba et al., Layer
    Normalization (2016). Reads the input once, w and b; writes the output, means and variances.
    """,
)
INFERENCE: Final = declare(
    "normalization.inference",
    """2 per element: with known statistics a·x + b, with a and b of the channel.

    Reads the input, w, b, means and variances; writes the output.
    """,
)
BATCH_BACKWARD: Final = declare(
    "normalization.batch_backward",
    """9 per element, 6 with fixed statistics: gradients of input, w and b.

    x̂ again: 2. db = Σdy: 1. dw = Σdy·x̂: 2. dx = w·r·(dy - db/m - x̂·dw/m), the factors once per
    channel: 4; with fixed statistics dx = w·r·dy: 1. Ioffe and Szegedy (2015), section 3. Reads the
    input, dy, w, means and variances; writes dx, dw and db.
    """,
)
LAYER_BACKWARD: Final = declare(
    "normalization.layer_backward",
    """13 per element, 9 without w and b: gradients of input, w and b; w differs within a row.

    x̂ again: 2. db = Σdy: 1. dw = Σdy·x̂: 2. g = w·dy: 1. The row's Σg and Σg·x̂: 3.
    dx = r·(g - Σg/m - x̂·Σ(g·x̂)/m): 4. Without w and b: 2 + 3 + 4. Ba et al. (2016). Reads the
    input, dy, w, means and r; writes dx, dw and db.
    """,
)
RMS: Final = declare(
    "normalization.rms",
    """4 per element, 3 without w: x · (mean of x²)^-½ · w.

    Square and accumulate: 2; two products. Zhang and Sennrich, Root Mean Square Layer
    Normalization (2019). Reads the input and w; writes the output.
    """,
)
LOCAL_RESPONSE: Final = declare(
    "normalization.local_response",
    """n + 5 per element: x · (k + a/n · Σx²)^-b over n neighbouring channels.

    The square: 1. Its sum over n channels: n additions (the windows at the edges count in full).
    Scale and shift: 2. The power: 1. The product: 1. Krizhevsky et al. (2012), section 3.3. Reads
    the input, writes the output.
    """,
)
LOCAL_RESPONSE_BACKWARD: Final = declare(
    "normalization.local_response_backward",
    """2n + 10 per element: dx = dy·s^-b - (2ab/n)·x · Σ dy·y/s, s = k + a/n · Σx².

    s again: 1 + n + 2. dy·s^-b: 2. dy·y/s: 2. Its sum over n channels: n. Times x, times the
    constant, subtracted: 3. The derivative of the formula of Krizhevsky et al. (2012), section
    3.3. Reads input, output and dy, writes dx.
    """,
)


def _cost(
    kind: str,
    name: str,
    each: int,
    elements: int,
    parameters: int,
    statistics: int,
    size: int | None,
    statistics_size: int | None,
) -> tuple[Cost, ...]:
    """Return the cost of ``each`` operations for an element of a normalized tensor.

    ``parameters`` counts the elements of w (and of b), 0 without w; ``statistics`` the means (and
    the variances). ``size`` is the bytes of an element, ``statistics_size`` of a statistic and a
    parameter.
    """
    part: Part = "backward" if name.endswith("_backward") else "forward"
    # Input and output, or input and both gradients; w and b, or w and the gradients of both.
    tensors = 3 if part == "backward" else 2
    vectors = parameters if name == RMS else tensors * parameters + 2 * statistics
    moved = compulsory(Operand(tensors * elements, size), Operand(vectors, statistics_size))
    return (Cost(kind, part, elements * each, moved, name),)


@function("batch_norm", "batch_norm_training", "batch_norm_inference", "batch_norm_backward")
def batch_norm(call: Call) -> tuple[Cost, ...]:
    """Count a normalization by channel, with statistics of the batch or known ones, or its
    gradients. Operators of gradients without a flag run in training only."""
    shape, backward = call.shape("x"), call.formula == "batch_norm_backward"
    # TensorFlow gives no averages in training, or the running ones.
    averages = call.shape("mean") if call.has("mean") else None
    if call.formula in ("batch_norm_training", "batch_norm_inference"):
        trained = call.formula == "batch_norm_training"
    elif call.scalars and "training" in call.at:
        trained = call.flag("training")
    elif call.training is not None:
        trained = call.training
    elif averages == (0,) or (backward and "training" not in call.at):
        trained = True
    else:
        raise UncountableError("training flag not recorded")
    if len(shape) < 2:
        raise UncountableError(f"input {call.position('x')}: unexpected rank {len(shape)}")
    weight, each, name = call.elements("w") if call.has("w") else 0, 2, INFERENCE
    if backward:
        each, name = 9 if trained else 6, BATCH_BACKWARD
    elif trained:
        each, name = 8 if weight else 6, TRAINING
    # Statistics are in single precision where the input is in half precision.
    sizes = call.size("x"), call.size("w" if weight else "x")
    return _cost("batch_norm", name, each, prod(shape), weight, weight or shape[1], *sizes)


@function("layer_norm", "layer_norm_backward", "group_norm", "group_norm_backward")
def layer_norm(call: Call) -> tuple[Cost, ...]:
    """Count a normalization of the rows, or of groups of channels with means [N, g]; or its
    gradients."""
    shape, weight = call.shape("x"), call.elements("w") if call.has("w") else 0
    kind = call.formula.removesuffix("_backward")
    if kind == "group_norm":
        groups = None
        if "means" in call.at:
            groups = call.shape("means")[-1] if call.has("means") and call.shape("means") else None
        elif call.scalars:
            groups = call.extents("groups", 1)[0]
        if groups is None or not shape:
            raise UncountableError("group count not recorded")
        rows = shape[0] * groups
    elif "means" in call.at:
        rows = call.elements("means")
    elif weight:
        rows = prod(shape) // weight
    else:
        rows = prod(shape[: len(shape) - len(call.integers("extents"))])
    each, name = (8 if weight else 6), TRAINING
    if call.formula.endswith("_backward"):
        each, name = (13 if weight else 9), LAYER_BACKWARD
    sizes = call.size("x"), call.size("w" if weight else "x")
    return _cost(kind, name, each, prod(shape), weight, rows, *sizes)


@function("rms_norm")
def rms_norm(call: Call) -> tuple[Cost, ...]:
    """Count a normalization by the root mean square."""
    weight = call.elements("w") if call.has("w") else 0
    sizes = call.size("x"), call.size("w") if weight else None
    return _cost("rms_norm", RMS, 4 if weight else 3, call.elements("x"), weight, 0, *sizes)


@function("local_response_norm", "local_response_norm_backward")
def lrn(call: Call) -> tuple[Cost, ...]:
    """Count a local response normalization; the number of channels is outside the call."""
    if call.window is None or len(call.window) != 1:
        raise UncountableError("LRN size not recorded")
    elements, (neighbours,), image = call.elements("x"), call.window, call.operand("x")
    kind = "local_response_norm"
    if call.formula == kind:
        flops = elements * (neighbours + 5)
        return (Cost(kind, "forward", flops, compulsory(image, image), LOCAL_RESPONSE),)
    flops, moved = elements * (2 * neighbours + 10), compulsory(image, image, image, image)
    return (Cost(kind, "backward", flops, moved, LOCAL_RESPONSE_BACKWARD),)
