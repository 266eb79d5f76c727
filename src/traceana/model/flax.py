"""Layers of a Flax module: linen by intercepted methods, NNX by replaced class methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import flax.linen as nn
import jax
from flax import nnx

from traceana.model.jaxpr import abstract, dtypes_of, leaves, refused, shapes_in
from traceana.model.manifest_rows import Details, finished, model_inputs
from traceana.model.recorded_calls import (
    PARAMETERS,
    ModelCall,
    Pads,
    Recorded,
    Recording,
    channels_first,
    per_axis,
    renamed,
    same_pads,
)
from traceana.runs.layer_manifest import Manifest, Shape, manifest


def describe_linen(
    model: nn.Module, call: ModelCall, name: str | None, types: Mapping[str, str], variables: Any
) -> Manifest:
    """Return the manifest of a linen module; see :func:`traceana.describe`.

    Without ``variables`` the module is initialized on shapes, without memory for data.
    """
    dtypes = dtypes_of(call, leaves(variables))
    arguments, named = call.arguments(abstract(call, dtypes))
    recording = Recording()
    trained: dict[object, Trained] = {}

    def watch(run: Any, inputs: Any, options: Any, context: Any) -> Any:
        module = context.module
        output = run(*inputs, **options)
        outer_layer = module.parent
        while isinstance(outer_layer, nn.Module) and own_type(outer_layer) is None:
            outer_layer = outer_layer.parent
        inside = isinstance(outer_layer, nn.Module)
        children = module._state.children.values()
        has_modules = any(isinstance(child, nn.Module) for child in children)
        leaf = own_type(module) is not None or not has_modules
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
            # A shared module has all its parameters in later calls too.
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
    all_variables = result if variables is None else variables
    layers = tuple(
        finished(recorded, position, details(recorded, trained[recorded.key], types))
        for position, recorded in enumerate(recording.layers)
    )
    return manifest(
        network=name or model.name or type(model).__name__,
        framework="Flax",
        inputs=model_inputs(call, dtypes, layers, "channels_last"),
        layers=layers,
        parameter_count=sum(
            prod(shape) for shape in _shapes(all_variables.get("params", {})).values()
        ),
    )


def _shapes(parameters: Any) -> dict[tuple[str, ...], tuple[int, ...]]:
    return {
        tuple(str(getattr(key, "key", key)) for key in path): tuple(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)
    }


def describe_nnx(
    model: Any, call: ModelCall, name: str | None, types: Mapping[str, str]
) -> Manifest:
    """Return the manifest of an NNX module; see :func:`traceana.describe`."""
    definition, state = nnx.split(model)
    parameters = nnx.state(model, nnx.Param)
    dtypes = dtypes_of(call, leaves(parameters))
    arguments, named = call.arguments(abstract(call, dtypes))
    recording = Recording()

    def run(state: Any, *inputs: Any, **options: Any) -> Any:
        # A copy with abstract values: its changes do not reach the model.
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
    """Record the calls of the model's layers. NNX has no hooks, so class methods are replaced."""
    modules = dict(nnx.iter_modules(model))
    # Flax' own layers and modules without submodules.
    paths: dict[int, str] = {}
    originals = {}
    for path, module in modules.items():
        has_modules = any(other[: len(path)] == path and other != path for other in modules)
        if own_type(module) is not None or not has_modules:
            paths[id(module)] = ".".join(map(str, path)) or type(module).__name__
            originals[type(module)] = type(module).__call__
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


def _trained(module: Any) -> dict[tuple[str, ...], tuple[int, ...]]:
    flat = jax.tree_util.tree_leaves_with_path(nnx.state(module, nnx.Param))
    return {
        tuple(str(key.key) for key in path if hasattr(key, "key")): tuple(leaf.shape)
        for path, leaf in flat
    }


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
    """Return the name of the module's Flax class, None for a custom class."""
    for base in type(module).__mro__:
        name = base.__name__
        if base.__module__.startswith("flax.") and (
            name in _TYPES or name in _RANKED or name in _NORMALIZED
        ):
            return name
    return None


def details(recorded: Recorded, trained: Trained, types: Mapping[str, str]) -> Details:
    """Return type and arguments of a recorded module."""
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
    recorded: Recorded, trained: Trained, given_type: str | None, framework_type: str
) -> Details:
    module, own = recorded.layer, own_type(recorded.layer) or ""
    size = module.kernel_size
    kernel = (size,) if isinstance(size, int) else tuple(size)
    axes = len(kernel)
    type_ = given_type or f"{own}{axes}d"
    stride = per_axis(module.strides or 1, axes)
    dilation = per_axis(getattr(module, "kernel_dilation", 1) or 1, axes)
    in_shape = channels_first(recorded.inputs[0], type_, recorded.axes)
    out_shape = channels_first(recorded.outputs[0], type_, recorded.axes)
    sizes = out_shape[-axes:] if own == "ConvTranspose" else in_shape[-axes:]
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


def _padding(padding: Any, sizes: Shape, kernel: Shape, stride: Shape, dilation: Shape) -> Pads:
    windows = list(zip(sizes, kernel, stride, dilation, strict=True))
    if isinstance(padding, str):
        if padding.upper() == "SAME":
            return tuple(same_pads(*window) for window in windows)
        if padding.upper() == "VALID":
            return ((0, 0),) * len(kernel)
        around = [spread * (window - 1) for _, window, _, spread in windows]
        if padding.upper() == "CAUSAL":
            return tuple((total, 0) for total in around)
        return tuple((total // 2, total - total // 2) for total in around)
    pairs = [padding] * len(kernel) if isinstance(padding, int) else list(padding)
    return tuple((pads, pads) if isinstance(pads, int) else (pads[0], pads[1]) for pads in pairs)


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
