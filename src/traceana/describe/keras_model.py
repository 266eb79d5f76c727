"""Layers of a Keras model, by watching its symbolic call.

Layers alone are layers: an activation that a layer applies itself, and functions of ``keras.ops``,
are not.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import keras

from traceana.describe.finish import finished, model_inputs
from traceana.describe.inputs import Call
from traceana.describe.keras_layers import details, is_layer, parameters
from traceana.describe.manifest import Manifest, manifest
from traceana.describe.recording import Recorded, Recording
from traceana.errors import BadModelError


def describe_keras(model: Any, call: Call, name: str | None, types: Mapping[str, str]) -> Manifest:
    """Describe a built Keras model; see :func:`traceana.describe`."""
    if not isinstance(model, keras.layers.Layer):
        raise BadModelError(f"a {type(model).__qualname__} is no Keras model: give one, or a layer")
    if not model.built:
        raise BadModelError(
            f"the Keras model {model.name} is not built: call it once on an input of shape "
            f"{call.shapes[0]}, then describe it"
        )
    dtypes = [dtype or str(model.dtype_policy.compute_dtype) for dtype in call.dtypes]
    recording = Recording()
    try:
        with _watched(recording):
            _symbolic_call(model, call, dtypes)
    except Exception as error:  # a model's call may raise anything
        shapes = ", ".join(map(str, call.shapes))
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadModelError(
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


def _symbolic_call(model: Any, call: Call, dtypes: list[str]) -> None:
    # Keras' own way of asking for an output's shape: nothing is computed and no variable changes.
    # A plain call on symbolic tensors would add a node to the model.
    backend = importlib.import_module("keras.src.backend")
    tensors = [
        keras.KerasTensor(shape, dtype=dtype)
        for shape, dtype in zip(call.shapes, dtypes, strict=True)
    ]
    arguments, named = call.arguments(tensors)
    if len(arguments) > 1 and hasattr(model, "_inputs_struct"):
        # A functional model takes its inputs as one list, one of its own class as arguments.
        arguments = [arguments]
    backend.compute_output_spec(model.__call__, *arguments, **named)


@contextmanager
def _watched(recording: Recording) -> Iterator[None]:
    """Record every call of a layer. Keras has no hooks, so the class itself is watched."""
    watched = keras.layers.Layer
    original = watched.__call__
    around: list[Any] = []

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        inside_layer = any(is_layer(layer) for layer in around)
        around.append(self)
        try:
            output = original(self, *arguments, **options)
        finally:
            around.pop()
        if not inside_layer and is_layer(self):
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
                )
            )
        return output

    watched.__call__ = call
    try:
        yield
    finally:
        watched.__call__ = original


def _shapes(values: Any) -> list[tuple[int, ...]]:
    return [
        tuple(int(size) for size in value.shape)
        for value in keras.tree.flatten(values)
        if hasattr(value, "shape") and None not in tuple(value.shape)
    ]
