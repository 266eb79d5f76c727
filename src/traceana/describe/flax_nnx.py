"""Layers of a Flax NNX module, by watching the calls of its modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import jax
from flax import nnx

from traceana.describe.finish import finished, model_inputs
from traceana.describe.flax_layers import details, own_type
from traceana.describe.inputs import Call
from traceana.describe.jax_inputs import abstract, dtypes_of, leaves, refused, shapes_in
from traceana.describe.manifest import Manifest, manifest
from traceana.describe.recording import Recorded, Recording


def describe_nnx(model: Any, call: Call, name: str | None, types: Mapping[str, str]) -> Manifest:
    """Describe an NNX module; see :func:`traceana.describe`."""
    definition, state = nnx.split(model)
    parameters = nnx.state(model, nnx.Param)
    dtypes = dtypes_of(call, leaves(parameters))
    arguments, named = call.arguments(abstract(call, dtypes))
    recording = Recording()

    def run(state: Any, *inputs: Any, **options: Any) -> Any:
        # A twin made of abstract values: what it changes in itself never reaches the model.
        twin = nnx.merge(definition, state)
        with _watched(twin, recording):
            return twin(*inputs, **options)

    try:
        jax.eval_shape(run, state, *arguments, **named)
    except Exception as error:  # a module's call may raise anything
        raise refused(call, error) from error
    layers = tuple(
        finished(recorded, position, details(recorded, _trained(recorded.layer), types))
        for position, recorded in enumerate(recording.layers)
    )
    return manifest(
        network=name or type(model).__name__,
        framework="Flax",
        inputs=model_inputs(call, dtypes, layers, "channels_last"),
        layers=layers,
        parameter_count=sum(prod(leaf.shape) for leaf in leaves(parameters)),
    )


@contextmanager
def _watched(model: Any, recording: Recording) -> Iterator[None]:
    """Record the calls of the model's layers. NNX has no hooks, so their classes are watched."""
    paths = {id(module): path for path, module in _layers(model)}
    originals = {
        type(module): type(module).__call__
        for _, module in nnx.iter_modules(model)
        if id(module) in paths
    }
    running = False

    def watching(original: Any) -> Any:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal running
            outermost = not running and id(self) in paths
            running = running or outermost
            try:
                output = original(self, *arguments, **options)
            finally:
                running = running and not outermost
            if outermost:
                recording.add(
                    Recorded(
                        key=id(self),
                        path=paths[id(self)],
                        layer=self,
                        inputs=shapes_in((arguments, options)),
                        outputs=shapes_in(output),
                        axes="channels_last",
                        layout="channels_last",
                    )
                )
            return output

        return call

    for kind, original in originals.items():
        kind.__call__ = watching(original)
    try:
        yield
    finally:
        for kind, original in originals.items():
            kind.__call__ = original


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield Flax' own layers and modules without modules in them, each under its path."""
    modules = dict(nnx.iter_modules(model))
    for path, module in modules.items():
        has_modules = any(other[: len(path)] == path and other != path for other in modules)
        if own_type(module) is not None or not has_modules:
            yield ".".join(map(str, path)) or type(module).__name__, module


def _trained(module: Any) -> dict[tuple[str, ...], tuple[int, ...]]:
    flat = jax.tree_util.tree_leaves_with_path(nnx.state(module, nnx.Param))
    return {
        tuple(str(key.key) for key in path if hasattr(key, "key")): tuple(leaf.shape)
        for path, leaf in flat
    }
