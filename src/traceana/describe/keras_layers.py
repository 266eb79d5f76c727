"""What Keras' layers are in the manifest's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import keras
from keras import layers

from traceana.describe.finish import Details
from traceana.describe.geometry import Pads, channels_first, missing, per_axis, renamed, same_pads
from traceana.describe.manifest import Shape
from traceana.describe.recording import Recorded
from traceana.describe.vocabulary import ACTIVATIONS, PARAMETERS

_TYPES: Final = {
    "Dense": "Linear",
    "Conv1D": "Conv1d",
    "Conv2D": "Conv2d",
    "Conv3D": "Conv3d",
    "Conv1DTranspose": "ConvTranspose1d",
    "Conv2DTranspose": "ConvTranspose2d",
    "Conv3DTranspose": "ConvTranspose3d",
    "DepthwiseConv1D": "Conv1d",
    "DepthwiseConv2D": "Conv2d",
    "SeparableConv1D": "SeparableConv1d",
    "SeparableConv2D": "SeparableConv2d",
    **{f"{kind}Pooling{n}D": f"{short}{n}d" for n in (1, 2, 3)
       for kind, short in (("Max", "MaxPool"), ("Average", "AvgPool"))},
    **{f"Global{kind}Pooling{n}D": f"Adaptive{short}{n}d" for n in (1, 2, 3)
       for kind, short in (("Max", "MaxPool"), ("Average", "AvgPool"))},
    **{f"ZeroPadding{n}D": f"ZeroPad{n}d" for n in (1, 2, 3)},
    **{f"Cropping{n}D": f"Crop{n}d" for n in (1, 2, 3)},
    **{f"SpatialDropout{n}D": f"Dropout{n}d" for n in (1, 2, 3)},
    "UpSampling1D": "Upsample",
    "UpSampling2D": "Upsample",
    "UpSampling3D": "Upsample",
    "LayerNormalization": "LayerNorm",
    "GroupNormalization": "GroupNorm",
    "RMSNormalization": "RMSNorm",
    "MultiHeadAttention": "MultiheadAttention",
    "SimpleRNN": "RNN",
    **{same: same for same in ("Flatten", "Dropout", "Embedding", "LSTM", "GRU", "Softmax")},
    **{same: same for same in ("Add", "Multiply", "Subtract", "Concatenate", "Identity")},
    **{same: same for same in ("Reshape", "Permute", "EinsumDense")},
    **{same: same for same in ("ReLU", "LeakyReLU", "PReLU", "ELU")},
}  # fmt: skip
_NOT_TRAINED: Final = ("moving_mean", "moving_variance", "seed_generator_state")


def is_layer(layer: Any) -> bool:
    """Tell whether this is a layer: one of Keras' own, or one without layers in it."""
    if isinstance(layer, keras.Model):
        return False
    return _own(layer) is not None or not any(
        inner is not layer for inner in layer._flatten_layers(include_self=False)
    )


def details(recorded: Recorded, types: Mapping[str, str]) -> Details:
    """Return what the layer of a recorded call is."""
    layer = recorded.layer
    name = type(layer).__name__
    type_ = types.get(name) or _type(layer, recorded) or name
    framework_type = f"{type(layer).__module__}.{type(layer).__qualname__}"
    shapes = _as_pytorch(type_, layer)
    window = getattr(layer, "kernel_size", None) or getattr(layer, "pool_size", None)
    if window is None or not type_.endswith("d"):
        return Details(type_, framework_type, parameters=shapes)
    axes = int(type_[-2])
    given = channels_first(recorded.inputs[0], type_, recorded.axes)
    made = channels_first(recorded.outputs[0], type_, recorded.axes)
    kernel = per_axis(window, axes)
    stride = per_axis(layer.strides, axes)
    dilation = per_axis(getattr(layer, "dilation_rate", 1), axes)
    groups = getattr(layer, "groups", 1)
    if hasattr(layer, "depth_multiplier"):
        groups = given[1]
    return Details(
        type=type_,
        framework_type=framework_type,
        kernel=kernel,
        stride=stride,
        padding=_padding(type_, layer.padding, given, made, kernel, stride, dilation),
        dilation=dilation,
        groups=groups if "Conv" in type_ else None,
        parameters=shapes,
    )


def parameters(layer: Any) -> list[tuple[str, Shape]]:
    """Return path and shape of what is trained, as Keras has them, frozen or not."""
    return [
        (variable.path, tuple(variable.shape))
        for variable in layer.weights
        if variable.name not in _NOT_TRAINED
    ]


def _own(layer: Any) -> str | None:
    for base in type(layer).__mro__:
        if base.__module__.startswith("keras.") and base is not layers.Layer:
            return base.__name__
    return None


def _type(layer: Any, recorded: Recorded) -> str | None:
    own = _own(layer)
    if own == "Activation":
        name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
        return renamed(ACTIVATIONS, name)
    if own == "ReLU" and layer.max_value == 6:
        return "ReLU6"
    if own == "BatchNormalization":
        return f"BatchNorm{max(len(recorded.inputs[0]) - 2, 1)}d"
    return None if own is None else renamed(_TYPES, own)


def _padding(
    type_: str,
    said: str,
    given: Shape,
    made: Shape,
    kernel: Shape,
    stride: Shape,
    dilation: Shape,
) -> Pads:
    if said == "causal":
        return ((dilation[0] * (kernel[0] - 1), 0),)
    found: list[tuple[int, int]] = []
    windows = zip(given[2:], made[2:], kernel, stride, dilation, strict=True)
    for size, out, window, step, spread in windows:
        if said != "same":
            found.append((0, 0))
        elif type_.startswith("ConvTranspose"):
            # What is cut from the whole: the padding of the convolution that it transposes.
            total = max(missing(out, size, window, step, spread), 0)
            found.append((total // 2, total - total // 2))
        else:
            found.append(same_pads(size, window, step, spread))
    return tuple(found)


def _as_pytorch(type_: str, layer: Any) -> dict[str, Shape]:
    attention = type_ == "MultiheadAttention"
    depthwise = hasattr(layer, "depth_multiplier")
    found = {}
    for path, shape in parameters(layer):
        parts = path.split("/")[-2 if attention else -1 :]
        name = ".".join(renamed(_NAMES, part) for part in parts)
        found[name] = _reordered(type_, parts, shape, depthwise)
    return found


_NAMES: Final = {**PARAMETERS, "attention_output": "out"}


def _reordered(type_: str, parts: Sequence[str], shape: Shape, depthwise: bool) -> Shape:
    kind = parts[-1]
    if type_ == "MultiheadAttention":
        out = parts[0] == "attention_output"
        if kind == "bias":
            return (prod(shape),)
        if kind == "kernel":
            return (shape[-1], prod(shape[:-1])) if out else (prod(shape[1:]), shape[0])
        return shape
    if depthwise and kind in ("kernel", "depthwise_kernel"):
        return (shape[-2] * shape[-1], 1, *shape[:-2])
    if kind.endswith("kernel") and "Conv" in type_:
        # (R, S, C / groups, K); of a transposed convolution (R, S, K, C), PyTorch's (C, K, R, S).
        return (shape[-1], shape[-2], *shape[:-2])
    if kind.endswith("kernel") and len(shape) == 2:
        return (shape[1], shape[0])
    return shape
