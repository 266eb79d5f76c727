"""Softmax and its logarithm."""

from __future__ import annotations

from traceana.flops.model import Cost, Operand, compulsory
from traceana.flops.registry import formula


@formula("softmax.forward")
def softmax(elements: int, size: int | None, output_size: int | None, *, log: bool = False) -> Cost:
    """5 an element, the logarithm too: maximum, subtraction, exponential, sum, division.

    exp(x - max) / Σexp(x - max); the logarithm subtracts log Σ once more in place of dividing.
    Reads the input, writes the output.
    """
    moved = compulsory(Operand(elements, size), Operand(elements, output_size))
    kind = "log_softmax" if log else "softmax"
    return Cost(kind, "forward", 5 * elements, moved, "softmax.forward")


@formula("softmax.backward")
def softmax_backward(elements: int, size: int | None, *, log: bool = False) -> Cost:
    """4 an element: y·(dy - Σdy·y), or of the logarithm dy - exp(y)·Σdy.

    Product, sum, difference, product; of the logarithm sum, exponential, product, difference.
    Reads dy and y, writes dx.
    """
    image = Operand(elements, size)
    kind = "log_softmax" if log else "softmax"
    moved = compulsory(image, image, image)
    return Cost(kind, "backward", 4 * elements, moved, "softmax.backward")


@formula("softmax.cross_entropy")
def softmax_cross_entropy(
    samples: int, classes: int, size: int | None, labels: Operand | None, *, sparse: bool
) -> Cost:
    """9 · N · K, or 6 · N · K + 2 · N where labels are classes: -Σt·log p and its gradient p - t.

    log p: 5. p: an exponential. t·log p, summed: 2, and p - t: 1; where the labels are classes
    each of the two is one operation a sample. Reads N·K logits and the labels; writes N losses and
    N·K gradients.
    """
    logits = samples * classes
    flops = 6 * logits + 2 * samples if sparse else 9 * logits
    image = Operand(logits, size)
    moved = compulsory(image, labels, Operand(samples, size), image)
    return Cost("loss", "forward", flops, moved, "softmax.cross_entropy")
