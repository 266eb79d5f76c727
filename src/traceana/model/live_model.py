"""``describe``: the manifest of a live model, by the adapter of its framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from traceana.errors import InvalidInputError
from traceana.model.recorded_calls import parse_call
from traceana.runs.layer_manifest import Manifest


def describe(
    model: Any,
    input_shape: Any,
    *,
    dtype: Any = None,
    name: str | None = None,
    types: Mapping[str, str] | None = None,
    parameters: Any = None,
) -> Manifest:
    """Return the manifest of a live model: its layers, and the FLOPs of one forward pass.

    ``model`` is a PyTorch ``nn.Module``, a built Keras model, a Flax module (linen or NNX), or a
    JAX function whose layers are named by ``jax.named_scope``. ``input_shape`` is in the
    framework's own order of axes with the batch first: (8, 3, 224, 224) or (8, 224, 224, 3). It is
    a list of shapes for several inputs and a mapping for keyword arguments; a tensor or an array
    stands for its shape and dtype. ``dtype`` is a name, or one per input; by default that of the
    tensor, or of the model's parameters.

    ``name`` is the network's, by default the model's own. ``types`` maps your own classes
    (for a JAX function: scopes) to layer types. ``parameters`` is the first argument of a JAX
    function or the variables of a linen module; a function may close over its parameters instead.

    The model runs on shapes without data if possible; otherwise a warning is issued. Its weights,
    statistics, training mode and random state are not changed. Raises
    :class:`InvalidInputError` for an unsupported framework, a model that is not built, and inputs
    on which the model does not run.
    """
    call = parse_call(input_shape, dtype)
    own = dict(types or {})
    families = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    modules = {base.__module__ for base in type(model).__mro__}
    if parameters is not None and families & {"torch", "keras"}:
        raise InvalidInputError(
            "parameters are for JAX functions and linen modules: leave them out"
        )
    if "keras" in families:
        from traceana.model.keras import describe_keras

        return describe_keras(model, call, name, own)
    if "torch" in families and "torch.nn.modules.module" in modules:
        from traceana.model.pytorch import describe_pytorch

        return describe_pytorch(model, call, name, own)
    if "flax.linen.module" in modules:
        from traceana.model.flax import describe_linen

        return describe_linen(model, call, name, own, parameters)
    if any(module.startswith("flax.nnx") for module in modules):
        from traceana.model.flax import describe_nnx

        return describe_nnx(model, call, name, own)
    # A JAX function has no JAX type, but JAX is imported.
    if sys.modules.get("jax") and callable(model) and not isinstance(model, type):
        from traceana.model.jax_function import describe_function

        return describe_function(model, call, name, own, parameters)
    raise InvalidInputError(
        f"a {type(model).__module__}.{type(model).__qualname__} is not a supported model: give a "
        "PyTorch module, a Keras model, a Flax module or a JAX function"
    )
