"""Layers told by name scopes: TensorFlow's operator names, XLA's ``op_name``.

``AlexNet/conv1/Conv2D`` is an operator of layer ``AlexNet.conv1``; so are
``gradient_tape/AlexNet/conv1/Conv2D/Conv2DBackpropFilter`` and JAX's
``jit(step)/transpose(jvp(AlexNet))/conv1/conv_general_dilated``, in the backward pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from traceana.attribute.layers.places import SEPARATOR, Layer
from traceana.attribute.nesting import NONE, Ints

_COMPONENT: Final = re.compile(r"(?:[^/()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+")
_WRAPPED: Final = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_CALLS: Final = frozenset({"jit", "pjit", "pmap", "xmap", "shard_map", "custom_jvp", "custom_vjp"})
"""JAX's transformations that name a function in brackets; the others name a scope."""
_JAX_FLOW: Final = re.compile(
    r"while|body|cond|scan|closed_call|core_call|pjit|checkpoint|remat\w*|branch_\d+_fun|"
    r"custom_[jv]\w+_call|rematted_computation"
)
_TF_FLOW: Final = re.compile(
    r"(?:^|(?<=/))(?:cond(?:_\d+)?/(?:then|else)/_\d+|while(?:_\d+)?/(?:body|cond)/_\d+|"
    r"(?:Stateful)?PartitionedCall(?:_\d+)?|replica_\d+)/"
)
_TF_BACKWARD: Final = frozenset({"gradient_tape", "gradients"})
_TF_REWRITTEN: Final = frozenset({"ArithmeticOptimizer", "ConstantFolding", "ConstantFoldingCtrl"})
"""Scopes of operators that TensorFlow's graph optimizer (Grappler) put in the place of others."""
_TF_FUNCTION: Final = re.compile(r"moments|batchnorm|\w+_grad")
"""Scopes of functions whose operators, and what is named after these, are all of one layer."""
_TF_NORM: Final = "batchnorm"
"""Of these the one that is a layer, where it is not fused: a dozen operators."""
_TF_INNER: Final = re.compile(
    r"convolution|(?:stateless_)?random_uniform|einsum|Tensordot|"
    # Operators that others were fused with, so that they are in the trace as scopes alone.
    r"Conv[123]D(?:Transpose)?|convolution_transpose|MatMul|BiasAdd|Add|Reshape|Shape|Cast|Squeeze|"
    r"ExpandDims|Transpose|Relu6?|Elu|Tanh|Sigmoid|Softmax|LogSoftmax|(?:Max|Avg)Pool(?:\dd|\dD)?|"
    r"Mean|Sum|FusedBatchNorm(?:V[23])?|LRN|SparseSoftmaxCrossEntropyWithLogits|ReadVariableOp"
)
"""Scopes that TensorFlow's own functions open within a layer."""
_TF_DROPOUT: Final = re.compile(r"(?:stateless_)?dropout")
_SUFFIX: Final = re.compile(r"_\d+$")
_OPTIMIZER: Final = re.compile(
    r"(?i)(?:optimizer|sgd|n?adam\w*|rmsprop|adagrad|adadelta|ftrl|lamb|lion|momentum|lars)(?:_\d+)*"
)


@dataclass(frozen=True, slots=True)
class ScopeLayers:
    """The layers that scopes tell of.

    ``table`` has the columns scope, layer, backward, and operator, what the operator is of or is
    called where that is more than its own name: JAX's functions and primitives.
    """

    table: pl.DataFrame
    layers: list[Layer]

    @classmethod
    def of(cls, ops: pl.DataFrame, activities: pl.DataFrame) -> ScopeLayers:
        """Read the scopes of ``ops`` and ``activities``; each distinct one is looked at once."""
        scopes = pl.concat([ops["scope"], activities["scope"]]).unique(maintain_order=True)
        distinct = scopes.drop_nulls()
        texts = distinct.cast(pl.String).to_list()
        operators = set(ops["name"].unique().cast(pl.String).to_list()) if texts else set()
        found = [_place(text) for text in texts]
        names = {SEPARATOR.join(parts) for parts, _ in found}
        paths = _without_suffixes([_path(parts, operators, names) for parts, _ in found])
        layers: dict[Layer, int] = {}
        codes = [layers.setdefault(_layer(path), len(layers)) if path else NONE for path in paths]
        table = pl.DataFrame(
            {
                "scope": distinct,
                "layer": pl.Series(codes, dtype=pl.Int64),
                "backward": pl.Series([backward for _, backward in found], dtype=pl.Boolean),
                "operator": pl.Series([_operator(text) for text in texts], dtype=pl.String),
            }
        )
        return cls(table, list(layers))

    def layer_of(self, scopes: pl.Series) -> Ints:
        """Return the index into ``layers`` of each scope, NONE where it tells none."""
        return self._told(scopes)["layer"].fill_null(NONE).to_numpy()

    def direction_of(self, scopes: pl.Series) -> pl.Series:
        """Return "backward" where a scope says so, else null."""
        backward = self._told(scopes)["backward"]
        return pl.select(pl.when(backward).then(pl.lit("backward"))).to_series()

    def operator_of(self, scopes: pl.Series) -> pl.Series:
        """Return what the operator is by its scope, null where that says no more than its name."""
        return self._told(scopes)["operator"]

    def _told(self, scopes: pl.Series) -> pl.DataFrame:
        frame = scopes.alias("scope").to_frame()
        return frame.join(self.table, on="scope", how="left", maintain_order="left")


def _operator(scope: str) -> str | None:
    """Return what the scope says of its operator beyond the operator's own name.

    ``relu`` of ``jit(step)/net/relu1/jit(relu)/max``, ``max`` of ``jit(step)/net/max``,
    ``batchnorm`` of ``net/bn/batchnorm/mul_1``.
    """
    components = _COMPONENT.findall(scope)
    if not components or _called(components[0]) is None:
        return _TF_NORM if _TF_NORM in components[1:] else None
    function = _called(components[-2]) if len(components) > 2 else None
    return function if function and not function.startswith("_") else components[-1]


def _called(component: str) -> str | None:
    """Return the function that is called, null where the component is no call."""
    wrapped = _WRAPPED.fullmatch(component)
    return wrapped[2] if wrapped and wrapped[1] in _CALLS else None


def _place(scope: str) -> tuple[tuple[str, ...], bool]:
    """Return the components of a scope, the operator last, and whether it is of a gradient."""
    components = _COMPONENT.findall(scope)
    if components and _called(components[0]) is not None:
        return _place_jax(components)
    parts = [
        part
        for part in _TF_FLOW.sub("", scope).split("/")
        if part and _SUFFIX.sub("", part) not in _TF_REWRITTEN
    ]
    backward = any(part in _TF_BACKWARD for part in parts[:1])
    return tuple(parts[1:] if backward else parts), backward


def _place_jax(components: list[str]) -> tuple[tuple[str, ...], bool]:
    parts: list[str] = []
    backward = False
    for component in components[:-1]:
        inner = component
        while wrapped := _WRAPPED.fullmatch(inner):
            backward |= wrapped[1] == "transpose"
            inner = "" if wrapped[1] in _CALLS else wrapped[2]
        if inner and not _JAX_FLOW.fullmatch(inner):
            parts += inner.split("/")
    return (*parts, components[-1]), backward


def _path(parts: tuple[str, ...], operators: set[str], names: set[str]) -> tuple[str, ...]:
    """Return the layer's path: without the operator, and the scopes that operators open."""
    path = parts[:-1]
    functions = (i for i, part in enumerate(path) if _TF_FUNCTION.fullmatch(_SUFFIX.sub("", part)))
    path = path[: next(functions, len(path))]
    while path and (
        _TF_INNER.fullmatch(_SUFFIX.sub("", path[-1]))
        or _SUFFIX.sub("", path[-1]) in operators
        or SEPARATOR.join(path) in names
        or (len(path) > 1 and _TF_DROPOUT.fullmatch(path[-1]) and "drop" in path[-2])
    ):
        path = path[:-1]
    return path


def _without_suffixes(paths: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Take off the ``_1`` that TensorFlow adds to every scope of a model built a second time.

    It is taken off where all paths under one root have it in all their components; numbers that
    tell layers apart differ.
    """
    suffixes: dict[str, set[str]] = {}
    for path in paths:
        for part in path:
            found = _SUFFIX.search(part)
            suffixes.setdefault(path[0], set()).add(found[0] if found else "")
    return [
        tuple(_SUFFIX.sub("", part) for part in path)
        if path and len(suffixes[path[0]]) == 1 and len(path) > 1
        else path
        for path in paths
    ]


def _layer(path: tuple[str, ...]) -> Layer:
    if _OPTIMIZER.fullmatch(path[0]):
        return path[0], None, "optimizer"
    return SEPARATOR.join(path), None, "layer"
