"""What Flax' modules are in the manifest's terms: linen and NNX have the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from traceana.describe.finish import Details
from traceana.describe.geometry import Pads, channels_first, per_axis, renamed, same_pads
from traceana.describe.manifest import Shape
from traceana.describe.recording import Recorded
from traceana.describe.vocabulary import PARAMETERS

_TYPES: Final = {
    "Dense": "Linear",
    "DenseGeneral": "Linear",
    "LinearGeneral": "Linear",
    "Linear": "Linear",
    "Embed": "Embedding",
    "MultiHeadDotProductAttention": "MultiheadAttention",
    "MultiHeadAttention": "MultiheadAttention",
    "SelfAttention": "MultiheadAttention",
    **{same: same for same in ("Dropout", "LayerNorm", "GroupNorm", "RMSNorm", "Einsum")},
    **{cell: cell.removesuffix("Cell") for cell in ("LSTMCell", "GRUCell")},
}
_RANKED: Final = {"Conv": "Conv", "ConvLocal": "ConvLocal", "ConvTranspose": "ConvTranspose"}
_NORMALIZED: Final = ("BatchNorm", "InstanceNorm")

Trained = Mapping[tuple[str, ...], Shape]
"""Shapes of a module's parameters, by their path within it."""


def own_type(module: Any) -> str | None:
    """Return the name of Flax' own class that the module is of, None for a class of the user's."""
    for base in type(module).__mro__:
        name = base.__name__
        if base.__module__.startswith("flax.") and (
            name in _TYPES or name in _RANKED or name in _NORMALIZED
        ):
            return name
    return None


def details(recorded: Recorded, trained: Trained, types: Mapping[str, str]) -> Details:
    """Return what the module of a recorded call is."""
    module = recorded.layer
    name = type(module).__name__
    own = own_type(module)
    framework_type = f"{type(module).__module__}.{type(module).__qualname__}"
    rank = len(recorded.inputs[0])
    if own in _RANKED:
        return _convolution(recorded, trained, types.get(name), framework_type)
    if own in _NORMALIZED:
        type_ = f"{own}{max(rank - 2, 1)}d"
    else:
        type_ = name if own is None else _TYPES[own]
    type_ = types.get(name, type_)
    return Details(type_, framework_type, parameters=_as_pytorch(type_, trained))


def _convolution(
    recorded: Recorded, trained: Trained, told: str | None, framework_type: str
) -> Details:
    module, own = recorded.layer, own_type(recorded.layer) or ""
    size = module.kernel_size
    kernel = (size,) if isinstance(size, int) else tuple(size)
    axes = len(kernel)
    type_ = told or f"{own}{axes}d"
    stride = per_axis(module.strides or 1, axes)
    dilation = per_axis(getattr(module, "kernel_dilation", 1) or 1, axes)
    given = channels_first(recorded.inputs[0], type_, recorded.axes)
    made = channels_first(recorded.outputs[0], type_, recorded.axes)
    sizes = made[-axes:] if own == "ConvTranspose" else given[-axes:]
    shapes = _as_pytorch(type_, trained)
    if own == "ConvTranspose" and not getattr(module, "transpose_kernel", False):
        # (R, S, C, K): PyTorch's is (C, K, R, S).
        shapes = {
            key: (shape[1], shape[0], *shape[2:]) if key == "weight" else shape
            for key, shape in shapes.items()
        }
    return Details(
        type=type_,
        framework_type=framework_type,
        kernel=kernel,
        stride=stride,
        padding=_padding(module.padding, sizes, kernel, stride, dilation),
        dilation=dilation,
        groups=getattr(module, "feature_group_count", 1),
        parameters=shapes,
    )


def _padding(said: Any, sizes: Shape, kernel: Shape, stride: Shape, dilation: Shape) -> Pads:
    windows = list(zip(sizes, kernel, stride, dilation, strict=True))
    if isinstance(said, str):
        if said.upper() == "SAME":
            return tuple(same_pads(*window) for window in windows)
        if said.upper() == "VALID":
            return ((0, 0),) * len(kernel)
        around = [spread * (window - 1) for _, window, _, spread in windows]
        if said.upper() == "CAUSAL":
            return tuple((total, 0) for total in around)
        return tuple((total // 2, total - total // 2) for total in around)
    pairs = [said] * len(kernel) if isinstance(said, int) else list(said)
    return tuple((one, one) if isinstance(one, int) else (one[0], one[1]) for one in pairs)


def _as_pytorch(type_: str, trained: Trained) -> dict[str, Shape]:
    return {
        ".".join(renamed(PARAMETERS, part) for part in path): _reordered(type_, path, shape)
        for path, shape in trained.items()
    }


def _reordered(type_: str, path: Sequence[str], shape: Shape) -> Shape:
    kind = path[-1]
    if type_ == "MultiheadAttention" and len(path) > 1:
        if kind == "bias":
            return (prod(shape),)
        out = path[-2] == "out"
        return (shape[-1], prod(shape[:-1])) if out else (prod(shape[1:]), shape[0])
    if kind == "kernel" and type_.startswith("Conv"):
        return (shape[-1], shape[-2], *shape[:-2])
    if kind == "kernel" and len(shape) == 2:
        return (shape[1], shape[0])
    return shape
