"""Layers of a Keras model, recorded during its symbolic call.

Rows are ``keras.layers``. Activations inside a layer and functions of ``keras.ops`` have no rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import keras
from keras import layers

from traceana.errors import InvalidInputError
from traceana.model.manifest_rows import Details, finished, model_inputs
from traceana.model.recorded_calls import (
    ACTIVATIONS,
    PARAMETERS,
    ModelCall,
    Pads,
    Recorded,
    Recording,
    any_of,
    channels_first,
    per_axis,
    renamed,
    same_pads,
    total_padding,
)
from traceana.runs.layer_manifest import Manifest, Shape, manifest


def describe_keras(
    model: Any, call: ModelCall, name: str | None, types: Mapping[str, str]
) -> Manifest:
    """Return the manifest of a built Keras model; see :func:`traceana.describe`."""
    if not isinstance(model, keras.layers.Layer):
        raise InvalidInputError(f"a {type(model).__qualname__} is not a Keras model or layer")
    if not model.built:
        raise InvalidInputError(
            f"the Keras model {model.name} is not built: call it once on an input of shape "
            f"{call.shapes[0]}, then describe it"
        )
    dtypes = [dtype or str(model.dtype_policy.compute_dtype) for dtype in call.dtypes]
    recording = Recording()
    try:
        with _watched(recording):
            # Keras computes output shapes this way, without data and without changing variables.
            # A call on symbolic tensors would add a node to the model.
            backend = importlib.import_module("keras.src.backend")
            tensors = [
                keras.KerasTensor(shape, dtype=dtype)
                for shape, dtype in zip(call.shapes, dtypes, strict=True)
            ]
            arguments, named = call.arguments(tensors)
            if len(arguments) > 1 and hasattr(model, "_inputs_struct"):
                # A functional model takes its inputs as one list, a subclass as arguments.
                arguments = [arguments]
            backend.compute_output_spec(model.__call__, *arguments, **named)
    except Exception as error:  # a model's call may raise anything
        shapes = ", ".join(map(str, call.shapes))
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidInputError(
            f"the model does not run on inputs of shape {shapes}: {reason}; give the shape and "
            "dtype that it was built for, with the batch first"
        ) from error
    layers = tuple(
        finished(recorded, position, details(recorded, types))
        for position, recorded in enumerate(recording.layers)
    )
    return manifest(
        network=name or model.name,
        framework="Keras",
        inputs=model_inputs(call, dtypes, layers, keras.config.image_data_format()),
        layers=layers,
        parameter_count=sum(prod(shape) for _, shape in parameters(model)),
    )


@contextmanager
def _watched(recording: Recording) -> Iterator[None]:
    """Record every layer call. Keras has no hooks, so the class method is replaced."""
    watched = keras.layers.Layer
    original = watched.__call__
    around: list[Any] = []
    gradients = _Gradients()

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        inside_layer = any(is_layer(layer) for layer in around)
        if not around:
            gradients.set((arguments, options), False)
        around.append(self)
        try:
            output = original(self, *arguments, **options)
        finally:
            around.pop()
        if not inside_layer and is_layer(self):
            input_gradient = gradients.of((arguments, options))
            gradients.set(output, True if self.trainable_weights else input_gradient)
            axes = getattr(self, "data_format", None) or keras.config.image_data_format()
            recording.add(
                Recorded(
                    key=id(self),
                    path="/".join(layer.name for layer in (*around, self)),
                    layer=self,
                    inputs=_shapes((arguments, options)),
                    outputs=_shapes(output),
                    axes=axes,
                    layout=axes,
                    input_gradient=input_gradient,
                )
            )
        return output

    watched.__call__ = call
    try:
        yield
    finally:
        watched.__call__ = original


class _Gradients:
    """Whether the gradient of a tensor is computed: a layer before it is trained."""

    def __init__(self) -> None:
        # The tensors are kept, because an identity is unique only during a lifetime.
        self._flags: dict[int, tuple[Any, bool | None]] = {}

    def set(self, values: Any, gradient: bool | None) -> None:
        """Set whether the gradient of the tensors in ``values`` is computed."""
        for tensor in _tensors(values):
            self._flags[id(tensor)] = tensor, gradient

    def of(self, values: Any) -> bool | None:
        """Return whether the gradient of a tensor in ``values`` is computed.

        That is unknown for results of functions between layers.
        """
        flags = (self._flags.get(id(tensor), (tensor, None)) for tensor in _tensors(values))
        return any_of(gradient for _, gradient in flags)


def _tensors(values: Any) -> list[Any]:
    return [value for value in keras.tree.flatten(values) if hasattr(value, "shape")]


def _shapes(values: Any) -> list[tuple[int, ...]]:
    return [
        tuple(int(size) for size in value.shape)
        for value in keras.tree.flatten(values)
        if hasattr(value, "shape") and None not in tuple(value.shape)
    ]


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
    """Return whether this is a layer: one of Keras' own, or one without inner layers."""
    if isinstance(layer, keras.Model):
        return False
    return _own(layer) is not None or not any(
        inner is not layer for inner in layer._flatten_layers(include_self=False)
    )


def details(recorded: Recorded, types: Mapping[str, str]) -> Details:
    """Return type and arguments of a recorded layer."""
    layer = recorded.layer
    name = type(layer).__name__
    type_ = types.get(name) or _type(layer, recorded) or name
    framework_type = f"{type(layer).__module__}.{type(layer).__qualname__}"
    depthwise = hasattr(layer, "depth_multiplier")
    shapes = {}
    for path, shape in parameters(layer):
        parts = path.split("/")[-2 if type_ == "MultiheadAttention" else -1 :]
        parameter = ".".join(renamed(_NAMES, part) for part in parts)
        shapes[parameter] = _reordered(type_, parts, shape, depthwise)
    window = getattr(layer, "kernel_size", None) or getattr(layer, "pool_size", None)
    if window is None or not type_.endswith("d"):
        return Details(type_, framework_type, parameters=shapes)
    axes = int(type_[-2])
    in_shape = channels_first(recorded.inputs[0], type_, recorded.axes)
    out_shape = channels_first(recorded.outputs[0], type_, recorded.axes)
    kernel = per_axis(window, axes)
    stride = per_axis(layer.strides, axes)
    dilation = per_axis(getattr(layer, "dilation_rate", 1), axes)
    groups = getattr(layer, "groups", 1)
    if depthwise:
        groups = in_shape[1]
    return Details(
        type=type_,
        framework_type=framework_type,
        kernel=kernel,
        stride=stride,
        padding=_padding(type_, layer.padding, in_shape, out_shape, kernel, stride, dilation),
        dilation=dilation,
        groups=groups if "Conv" in type_ else None,
        parameters=shapes,
    )


def parameters(layer: Any) -> list[tuple[str, Shape]]:
    """Return path and shape of the weights, frozen ones included."""
    return [
        (variable.path, tuple(variable.shape))
        for variable in layer.weights
        if variable.name not in _NOT_TRAINED
    ]


def _own(layer: Any) -> str | None:
    for base in type(layer).__mro__:
        # Of Layer itself the bases are in Keras too, as the backend's TFLayer.
        is_own = issubclass(base, layers.Layer) and base is not layers.Layer
        if is_own and base.__module__.startswith("keras."):
            return base.__name__
    return None


def _type(layer: Any, recorded: Recorded) -> str | None:
    own_type = _own(layer)
    if own_type == "Activation":
        name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
        return renamed(ACTIVATIONS, name)
    if own_type == "ReLU" and layer.max_value == 6:
        return "ReLU6"
    if own_type == "BatchNormalization":
        return f"BatchNorm{max(len(recorded.inputs[0]) - 2, 1)}d"
    return None if own_type is None else renamed(_TYPES, own_type)


def _padding(
    type_: str,
    padding: str,
    in_shape: Shape,
    out_shape: Shape,
    kernel: Shape,
    stride: Shape,
    dilation: Shape,
) -> Pads:
    if padding == "causal":
        return ((dilation[0] * (kernel[0] - 1), 0),)
    pads: list[tuple[int, int]] = []
    windows = zip(in_shape[2:], out_shape[2:], kernel, stride, dilation, strict=True)
    for size, out, window, step, spread in windows:
        if padding != "same":
            pads.append((0, 0))
        elif type_.startswith("ConvTranspose"):
            # The padding is that of the transposed convolution's forward counterpart.
            total = max(total_padding(out, size, window, step, spread), 0)
            pads.append((total // 2, total - total // 2))
        else:
            pads.append(same_pads(size, window, step, spread))
    return tuple(pads)


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
