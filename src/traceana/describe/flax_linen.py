"""Layers of a Flax linen module, by intercepting the calls of its modules."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import flax.linen as nn
import jax

from traceana.describe.finish import finished, model_inputs
from traceana.describe.flax_layers import Trained, details, own_type
from traceana.describe.inputs import Call
from traceana.describe.jax_inputs import abstract, dtypes_of, leaves, refused, shapes_in
from traceana.describe.manifest import Manifest, manifest
from traceana.describe.recording import Recorded, Recording


def describe_linen(
    model: nn.Module, call: Call, name: str | None, types: Mapping[str, str], variables: Any
) -> Manifest:
    """Describe a linen module; see :func:`traceana.describe`.

    Without ``variables`` the module is initialized on shapes alone, which takes no memory.
    """
    dtypes = dtypes_of(call, leaves(variables))
    arguments, named = call.arguments(abstract(call, dtypes))
    recording = Recording()
    trained: dict[object, Trained] = {}

    def watch(run: Any, inputs: Any, options: Any, context: Any) -> Any:
        module = context.module
        outer = module.parent
        output = run(*inputs, **options)
        inside = isinstance(outer, nn.Module) and _inside_layer(outer)
        leaf = own_type(module) is not None or not _has_modules(module)
        if context.method_name == "__call__" and leaf and not inside:
            recording.add(
                Recorded(
                    key=module.path,
                    path="/".join(module.path) or type(module).__name__,
                    layer=module,
                    inputs=shapes_in((inputs, options)),
                    outputs=shapes_in(output),
                    axes="channels_last",
                    layout="channels_last",
                )
            )
            # Later calls of a shared module see all its parameters too.
            trained[module.path] = _shapes(module.variables.get("params", {}))
        return output

    def run(variables: Any, *inputs: Any, **options: Any) -> Any:
        if variables is None:
            keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
            return model.init(keys, *inputs, **options)
        return model.apply(
            variables,
            *inputs,
            rngs={"dropout": jax.random.key(1)},
            mutable=nn.DenyList("params"),
            **options,
        )

    try:
        with nn.intercept_methods(watch):
            result = jax.eval_shape(run, variables, *arguments, **named)
    except Exception as error:  # a module's call may raise anything
        raise refused(call, error) from error
    held = result if variables is None else variables
    layers = tuple(
        finished(recorded, position, details(recorded, trained[recorded.key], types))
        for position, recorded in enumerate(recording.layers)
    )
    return manifest(
        network=name or model.name or type(model).__name__,
        framework="Flax",
        inputs=model_inputs(call, dtypes, layers, "channels_last"),
        layers=layers,
        parameter_count=sum(prod(shape) for shape in _shapes(held.get("params", {})).values()),
    )


def _inside_layer(module: Any) -> bool:
    while isinstance(module, nn.Module):
        if own_type(module) is not None:
            return True
        module = module.parent
    return False


def _has_modules(module: nn.Module) -> bool:
    return any(isinstance(child, nn.Module) for child in module._state.children.values())


def _shapes(parameters: Any) -> dict[tuple[str, ...], tuple[int, ...]]:
    return {
        tuple(str(getattr(key, "key", key)) for key in path): tuple(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)
    }
