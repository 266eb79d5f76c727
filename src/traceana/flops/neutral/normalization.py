"""Normalizations: batch, layer, group, instance, root mean square, local response."""

from __future__ import annotations

from dataclasses import dataclass

from traceana.flops.model import Cost, Operand, compulsory
from traceana.flops.registry import formula


@dataclass(frozen=True, slots=True)
class Normalized:
    """What is normalized: its elements, its parameters (of w, and as many of b), its statistics.

    ``parameters`` is 0 where there is no w; ``statistics`` counts the means (and the variances).
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
    """8 an element, 6 without w and b: statistics of the batch, then normalization.

    Mean: 1 addition. Variance: subtract, square, accumulate: 3. x̂ = (x - mean)·r: 2.
    w·x̂ + b: 2. What is done once a statistic (r = 1/√variance, running averages) is left out.
    Ioffe and Szegedy, Batch Normalization (2015), algorithm 1; Ba et al., Layer
    Normalization (2016). Reads the input once, w and b; writes the output, means and variances.
    """
    moved = compulsory(x.image, x.image, x.vectors(2, x.parameters), x.vectors(2, x.statistics))
    flops = x.elements * (8 if x.parameters else 6)
    return Cost(kind, "forward", flops, moved, "normalization.training")


@formula("normalization.inference")
def inference(x: Normalized, kind: str) -> Cost:
    """2 an element: with known statistics it is a·x + b, a and b the same for a channel.

    Reads the input, w, b, means and variances; writes the output.
    """
    moved = compulsory(x.image, x.image, x.vectors(2, x.parameters), x.vectors(2, x.statistics))
    return Cost(kind, "forward", 2 * x.elements, moved, "normalization.inference")


@formula("normalization.batch_backward")
def batch_backward(x: Normalized, kind: str, trained: bool = True) -> Cost:
    """9 an element, 6 where the statistics were fixed: gradients of input, w and b.

    x̂ again: 2. db = Σdy: 1. dw = Σdy·x̂: 2. dx = w·r·(dy - db/m - x̂·dw/m), the factors once a
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
    """13 an element, 9 without w and b: gradients of input, w and b, w differing within a row.

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
    """4 an element, 3 without w: x · (mean of x²)^-½ · w.

    Square and accumulate: 2; two products. Zhang and Sennrich, Root Mean Square Layer
    Normalization (2019). Reads the input and w; writes the output.
    """
    moved = compulsory(x.image, x.image, x.vectors(1, x.parameters))
    flops = x.elements * (4 if x.parameters else 3)
    return Cost(kind, "forward", flops, moved, "normalization.rms")


@formula("normalization.local_response")
def local_response(elements: int, neighbours: int, size: int | None) -> Cost:
    """n + 5 an element: x · (k + a/n · Σx²)^-b over n neighbouring channels.

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
    """2n + 10 an element: dx = dy·s^-b - (2ab/n)·x · Σ dy·y/s, s = k + a/n · Σx².

    s again: 1 + n + 2. dy·s^-b: 2. dy·y/s: 2. Its sum over n channels: n. Times x, times the
    constant, subtracted: 3. The derivative of the formula of Krizhevsky et al. (2012), section
    3.3. Reads input, output and dy, writes dx.
    """
    image = Operand(elements, size)
    flops = elements * (2 * neighbours + 10)
    moved = compulsory(image, image, image, image)
    name = "normalization.local_response_backward"
    return Cost("local_response_norm", "backward", flops, moved, name)
