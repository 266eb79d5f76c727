"""PyTorch's modules in the manifest's terms: type, kernel, stride, padding, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import nn

from traceana.model.layer_rows import Details
from traceana.model.manifest import Shape
from traceana.model.recorded_calls import Pads, Recorded, per_axis, same_pads, total_padding

_OWN: Final = "torch.nn.modules."
_CONTAINERS: Final = ("module", "container", "transformer")
_RENAMED: Final = {"LocalResponseNorm": "LRN"}


def is_layer(module: nn.Module) -> bool:
    """Return whether the module is a layer: one of PyTorch's own, or one without submodules.

    PyTorch's containers and transformer blocks consist of layers. ``MultiheadAttention``, with a
    submodule for the projection, is one layer.
    """
    return _own_type(module) is not None or next(module.children(), None) is None


def details(recorded: Recorded, types: Mapping[str, str]) -> Details:
    """Return type and arguments of a recorded module."""
    module: nn.Module = recorded.layer
    name = type(module).__name__
    given_type = types.get(name) or _own_type(module)
    # Modules inside a layer are part of it; modules inside other modules have their own rows.
    parameters = module.named_parameters(recurse=is_layer(module))
    shapes = {key: tuple(p.shape) for key, p in parameters}
    type_ = given_type or name
    if given_type is None and recorded.product is not None:
        type_ = "Linear"
        shapes = {
            key: recorded.product if len(shape) == 2 else shape for key, shape in shapes.items()
        }
    found = Details(
        type=type_,
        framework_type=f"{type(module).__module__}.{type(module).__qualname__}",
        parameters=_attention(shapes) if isinstance(module, nn.MultiheadAttention) else shapes,
        neighbours=module.size if isinstance(module, nn.LocalResponseNorm) else None,
        by_operators=given_type is None or isinstance(module, nn.MultiheadAttention),
    )
    in_shape, out_shape = recorded.inputs[0] if recorded.inputs else (), recorded.outputs[0]
    if isinstance(module, nn.modules.conv._ConvNd):
        return _convolution(found, module, in_shape)
    if type_.startswith(("MaxPool", "AvgPool", "LPPool")) and len(out_shape) == int(type_[-2]) + 2:
        return _pool(found, module, in_shape, out_shape)
    return found


def batch_first(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a tensor's shape with the batch first, also for time-first sequences."""
    sizes = tuple(int(size) for size in shape)
    kinds = (nn.MultiheadAttention, nn.RNNBase)
    if isinstance(module, kinds) and not module.batch_first and len(sizes) == 3:
        return (sizes[1], sizes[0], sizes[2])
    return sizes


def _own_type(module: nn.Module) -> str | None:
    for base in type(module).__mro__:
        if base.__module__.startswith(_OWN):
            if base.__module__.removeprefix(_OWN) in _CONTAINERS:
                return None
            # The attention's projection is a subclass of Linear.
            name = base.__name__.removeprefix("NonDynamicallyQuantizable")
            return _RENAMED.get(name, name)
    return None


def _convolution(found: Details, module: Any, in_shape: Shape) -> Details:
    axes = len(module.kernel_size)
    stride, dilation = tuple(module.stride), tuple(module.dilation)
    padding: Pads
    if module.padding == "same":
        sizes = in_shape[-axes:]
        windows = zip(sizes, module.kernel_size, stride, dilation, strict=True)
        padding = tuple(same_pads(*window) for window in windows)
    elif module.padding == "valid":
        padding = ((0, 0),) * axes
    else:
        padding = tuple((zeros, zeros) for zeros in module.padding)
    return Details(
        type=found.type,
        framework_type=found.framework_type,
        kernel=tuple(module.kernel_size),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=module.groups,
        parameters=found.parameters,
    )


def _pool(found: Details, module: Any, in_shape: Shape, out_shape: Shape) -> Details:
    axes = len(out_shape) - 2
    kernel = per_axis(module.kernel_size, axes)
    stride = per_axis(module.stride or module.kernel_size, axes)
    zeros = per_axis(getattr(module, "padding", 0), axes)
    dilation = per_axis(getattr(module, "dilation", 1), axes)
    padding: list[tuple[int, int]] = []
    windows = zip(in_shape[2:], out_shape[2:], kernel, stride, dilation, zeros, strict=True)
    for size, out, window, step, spread, before in windows:
        # With ceil_mode the last window may exceed the padding.
        beyond = total_padding(size, out, window, step, spread) - before
        padding.append((before, max(before, beyond)))
    return Details(
        type=found.type,
        framework_type=found.framework_type,
        kernel=kernel,
        stride=stride,
        padding=tuple(padding),
        dilation=dilation,
    )


def _attention(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return ``shapes`` with the joint projection of query, key and value split into three."""
    found: dict[str, Shape] = {}
    for key, shape in shapes.items():
        kind = "bias" if key.endswith("bias") else "weight"
        if key in ("in_proj_weight", "in_proj_bias"):
            for part in ("query", "key", "value"):
                found[f"{part}.{kind}"] = (shape[0] // 3, *shape[1:])
        elif key.endswith("_proj_weight"):
            part = {"q": "query", "k": "key", "v": "value"}[key[0]]
            found[f"{part}.weight"] = shape
        elif key.startswith("out_proj."):
            found[f"out.{kind}"] = shape
        else:
            found[key] = shape
    return found
