"""Windows and shapes in the one convention of the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from traceana.describe.manifest import Layout, Shape
from traceana.describe.vocabulary import has_images

Pads = tuple[tuple[int, int], ...]
_Item = TypeVar("_Item")


def channels_first(shape: Sequence[int], type_: str, layout: Layout | None) -> Shape:
    """Return the shape with the channels as second axis where it is an image's."""
    sizes = tuple(int(size) for size in shape)
    if layout == "channels_last" and has_images(type_, len(sizes)):
        return (sizes[0], sizes[-1], *sizes[1:-1])
    return sizes


def layout_of(shapes: Iterable[Sequence[int]], type_: str, layout: Layout) -> Layout | None:
    """Return ``layout`` where one of the shapes is an image's."""
    return layout if any(has_images(type_, len(shape)) for shape in shapes) else None


def per_axis(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Return one number a spatial axis; a single one stands for all."""
    numbers = (value,) if isinstance(value, int) else tuple(int(one) for one in value)
    return numbers * axes if len(numbers) == 1 else numbers


def output_size(
    size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int = 1
) -> int:
    """Return how many windows fit: Dumoulin, Visin 2016, relationship 15."""
    return (size + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1


def missing(size: int, out: int, kernel: int, stride: int, dilation: int) -> int:
    """Return by how many elements ``out`` windows reach beyond ``size`` (negative: fall short)."""
    return (out - 1) * stride + dilation * (kernel - 1) + 1 - size


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Return the zeros before and after that padding 'same' adds in TensorFlow, Keras and JAX.

    The output is ceil(size / stride) long; of an odd number of zeros the greater part is behind.
    """
    total = max(missing(size, -(-size // stride), kernel, stride, dilation), 0)
    return total // 2, total - total // 2


def pads_as_run(
    inputs: Shape,
    outputs: Shape,
    kernel: Sequence[int],
    stride: Sequence[int],
    declared: Pads,
    dilation: Sequence[int],
) -> Pads:
    """Return ``declared``, or what a layer that pads by itself before its convolution adds.

    That is inferred where the declared zeros do not give the output's size: the smallest equal
    padding of both sides that does, or else the smallest at all. ``inputs`` and ``outputs`` are
    (batch, channels, spatial axes).
    """
    found = []
    axes = zip(inputs[2:], outputs[2:], kernel, stride, declared, dilation, strict=True)
    for size, out, window, step, pads, spread in axes:
        if output_size(size, window, step, pads, spread) != out:
            total = max(missing(size, out, window, step, spread), 0)
            half = -(-total // 2)
            equal = output_size(size, window, step, (half, half), spread) == out
            found.append((half, half) if equal else (total // 2, half))
        else:
            found.append(pads)
    return tuple(found)


def renamed(table: Mapping[str, str], name: str) -> str:
    """Return what ``table`` calls ``name``, itself where it does not know it."""
    return table.get(name, name)
