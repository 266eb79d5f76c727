"""Tells which framework a model is of, without importing any other."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from traceana.describe.inputs import parse_call
from traceana.describe.manifest import Manifest
from traceana.errors import BadModelError


def describe(
    model: Any,
    input_shape: Any,
    *,
    dtype: Any = None,
    name: str | None = None,
    types: Mapping[str, str] | None = None,
    parameters: Any = None,
) -> Manifest:
    """Return the layers of a live model with what one forward pass does in each.

    ``model`` is a PyTorch ``nn.Module``, a built Keras model, a Flax module (linen or NNX), or a
    JAX function whose layers are named by ``jax.named_scope``. ``input_shape`` is in the
    framework's own order of axes with the batch first: (8, 3, 224, 224) or (8, 224, 224, 3); a list
    of shapes for several inputs, a mapping for keyword arguments. ``dtype`` is a name, or one an
    input; left out, it is that of the model's parameters.

    ``name`` is the network's, by default the model's own. ``types`` gives classes of your own
    (or, of a JAX function, scopes) a type of :mod:`traceana.describe.vocabulary`. ``parameters``
    is what a JAX function or a linen module takes before its inputs, where it does; a function may
    close over its parameters instead.

    The model runs on shapes alone where it can, and stays as it is: weights, statistics, training
    mode and random numbers. Raises :class:`BadModelError` for a model of no framework that is known
    here, one that is not built, and one that cannot run on these inputs.
    """
    call = parse_call(input_shape, dtype)
    own = dict(types or {})
    families = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    modules = {base.__module__ for base in type(model).__mro__}
    if parameters is not None and families & {"torch", "keras"}:
        raise BadModelError("parameters are for JAX functions and linen modules: leave them out")
    if "keras" in families:
        from traceana.describe.keras_model import describe_keras

        return describe_keras(model, call, name, own)
    if "torch" in families and "torch.nn.modules.module" in modules:
        from traceana.describe.pytorch import describe_pytorch

        return describe_pytorch(model, call, name, own)
    if "flax.linen.module" in modules:
        from traceana.describe.flax_linen import describe_linen

        return describe_linen(model, call, name, own, parameters)
    if any(module.startswith("flax.nnx") for module in modules):
        from traceana.describe.flax_nnx import describe_nnx

        return describe_nnx(model, call, name, own)
    # A function tells nothing of its framework; one that is JAX's has imported it.
    if "jax" in sys.modules and callable(model) and not isinstance(model, type):
        from traceana.describe.jax_function import describe_function

        return describe_function(model, call, name, own, parameters)
    raise BadModelError(
        f"a {type(model).__module__}.{type(model).__qualname__} is no model: give a PyTorch "
        "module, a Keras model, a Flax module or a JAX function"
    )
