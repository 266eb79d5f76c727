"""Layers and directions from name scopes: TensorFlow's operator names, XLA's ``op_name``.

``AlexNet/conv1/Conv2D`` is an operator of layer ``AlexNet.conv1``; so are
``gradient_tape/AlexNet/conv1/Conv2D/Conv2DBackpropFilter`` and JAX's
``jit(step)/transpose(jvp(AlexNet))/conv1/conv_general_dilated``, in the backward pass.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from traceana.enrich.layers.places import SEPARATOR, Layer
from traceana.enrich.nesting import NONE, Ints
from traceana.trace.schema import Direction

_WRAPPED: Final = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_CALLS: Final = frozenset({"jit", "pjit", "pmap", "xmap", "shard_map", "custom_jvp", "custom_vjp"})
"""JAX's transformations that name a function in brackets; the others name a scope."""
_JAX_PRIMITIVE: Final = re.compile(
    r"closed_call|core_call|pjit|pmap|xmap|shard_map|checkpoint|remat\w*|branch_\d+_fun|"
    r"custom_[jv]\w+_call|rematted_computation"
)
"""Primitives that hold a function: its scopes are below theirs."""
_JAX_LOOP: Final = re.compile(
    r"while/body(?=/|$)|while/cond(?=/)|cond(?=/branch_\d+_fun)|scan(?=/(?:while|body|closed_call)/)"
)
"""A loop or a conditional. The words alone are scopes of the program."""
_JAX_INNER: Final = re.compile(r"jit\(_?threefry\w*\)")
"""Functions of JAX's own that open scopes."""
_REMATERIALIZED: Final = "rematted_computation"

_TF_LOOP: Final = re.compile(r"(?:while|cond)(?:_grad)?(?:_\d+)?")
_TF_BRANCH: Final = frozenset({"body", "cond", "then", "else"})
_TF_NUMBER: Final = re.compile(r"_\d+")
_TF_FLOW: Final = re.compile(
    r"(?:Stateful)?PartitionedCall(?:_\d+)?|replica_\d+|GroupCrossDeviceControlEdges_\d+|"
    # Scopes of operators that TensorFlow's graph optimizer (Grappler) put in the place of others.
    r"(?:ArithmeticOptimizer|ConstantFolding|ConstantFoldingCtrl)(?:_\d+)?"
)
"""Scopes that calls, replicas and rewriting open."""
_TF_REPLICA: Final = r"(?:^|/)replica_(\d+)/"
_TF_TRANSFER: Final = re.compile(r"_?(?:Host)?(?:Send|Recv)|\w*Iterator\w*")
"""Operators that move data between devices or fetch the input."""
_TF_UPDATE: Final = re.compile(r"update_\d+(?:_\d+)?")
"""Scopes in which a replica assigns to a variable."""
_TF_FUNCTION: Final = re.compile(r"moments|batchnorm|\w+_grad")
"""Scopes of functions whose operators, and what is named after these, are all of one layer."""
_TF_NORM: Final = "batchnorm"
"""Of these the one that is a layer, where it is not fused: a dozen operators."""
_TF_INNER: Final = re.compile(
    r"convolution|stateless_dropout|(?:stateless_)?random_uniform|einsum|Einsum|Tensordot|truediv|"
    r"TensorArray(?:V2)?(?:Unstack|Stack|Read|Write)|"
    # Operators that others were fused with, so that they are in the trace as scopes alone.
    r"Conv[123]D(?:Transpose)?|convolution_transpose|MatMul|BiasAdd|Add|Reshape|Shape|Cast|Squeeze|"
    r"ExpandDims|Transpose|Relu6?|Elu|Tanh|Sigmoid|Softmax|LogSoftmax|(?:Max|Avg)Pool(?:\dd|\dD)?|"
    r"Identity|[A-Z]\w*V\d|Mean|Sum|FusedBatchNorm|LRN|SparseSoftmaxCrossEntropyWithLogits|ReadVariableOp"
)
"""Scopes that TensorFlow's own functions open within a layer."""
_TF_READ: Final = re.compile(r"(?:add|sub|mul|matmul|split)(?:_\d+)?")
"""Scopes of functions in which a variable is read; layers of these names have no variables."""
_TF_DROPOUT: Final = re.compile(r"dropout")
_SUFFIX: Final = re.compile(r"_\d+$")
_OPTIMIZER: Final = re.compile(
    r"(?i)(?:optimizer|sgd|n?adam\w*|rmsprop|adagrad|adadelta|ftrl|lamb|lion|momentum|lars)(?:_\d+)*"
)

_Path = tuple[str, ...]


class _Place(NamedTuple):
    """One scope: its ``parts``, the operator last, and the direction where it names one.

    ``loops`` are the paths of TensorFlow's loops and conditionals in it.
    """

    parts: _Path
    direction: str | None
    of_jax: bool = False
    transfer: bool = False
    loops: frozenset[_Path] = frozenset()


@dataclass(frozen=True, slots=True)
class ScopeLayers:
    """The layers that scopes name.

    ``table`` has the columns scope, layer, direction, and operator, what the operator is of or is
    called where that is more than its own name: JAX's functions and primitives. ``trains``: some
    scope is of a gradient.
    """

    table: pl.DataFrame
    layers: list[Layer]
    trains: bool

    @classmethod
    def of(cls, ops: pl.DataFrame, activities: pl.DataFrame) -> ScopeLayers:
        """Return the layers that the distinct scopes of ``ops`` and ``activities`` name.

        A scope that names no pass is of the forward pass if it is of a layer. What is of no layer
        is forward too, unless the program trains: then it can as well be the optimizer, a metric
        or the input. Transfers and the optimizer are of neither pass. What a backward pass
        computes again (rematerialization) is of the backward pass.
        """
        scopes = pl.concat([ops["scope"], activities["scope"]]).unique(maintain_order=True)
        distinct = scopes.drop_nulls()
        texts = distinct.cast(pl.String).to_list()
        operators = set(ops["name"].unique().cast(pl.String).to_list()) if texts else set()
        found = [_place(text) for text in texts]
        names = {SEPARATOR.join(place.parts) for place in found}
        loops: frozenset[_Path] = frozenset().union(*(place.loops for place in found))
        paths = [_path(place, operators, names, loops) for place in found]
        layers: dict[Layer, int] = {}
        codes = [layers.setdefault(_layer(path), len(layers)) if path else NONE for path in paths]
        trains = any(place.direction for place in found)
        directions = [
            place.direction or _unmarked(place, path, trains)
            for place, path in zip(found, paths, strict=True)
        ]
        table = pl.DataFrame(
            {
                "scope": distinct,
                "layer": pl.Series(codes, dtype=pl.Int64),
                "direction": pl.Series(directions, dtype=Direction),
                "operator": pl.Series([_operator(text) for text in texts], dtype=pl.String),
            }
        )
        return cls(table, list(layers), trains)

    def layer_of(self, scopes: pl.Series) -> Ints:
        """Return the index into ``layers`` of each scope, NONE where it names none."""
        return self._placed(scopes)["layer"].fill_null(NONE).to_numpy()

    def direction_of(self, scopes: pl.Series) -> pl.Series:
        """Return the direction of each scope, null for neither pass and without a scope."""
        return self._placed(scopes)["direction"]

    def direction_of_ops(self, ops: pl.DataFrame) -> pl.Series:
        """Return the direction of ``ops``: of their scopes, else the one that they have.

        Where scopes name a training program's passes, an operator without a scope is of neither.
        """
        names = ops["name"].unique().cast(pl.String).drop_nulls().to_list()
        transfers = [name for name in names if _TF_TRANSFER.fullmatch(name)]
        scoped = pl.col("name").cast(pl.String).is_in(transfers) | pl.col("scope").is_not_null()
        return ops.select(
            pl.when(scoped | self.trains)
            .then(self.direction_of(ops["scope"]))
            .otherwise(pl.col("direction").cast(Direction))
            .alias("direction")
        ).to_series()

    def operator_of(self, scopes: pl.Series) -> pl.Series:
        """Return the operator that each scope names, null where that is the operator's own name."""
        return self._placed(scopes)["operator"]

    def _placed(self, scopes: pl.Series) -> pl.DataFrame:
        frame = scopes.alias("scope").to_frame()
        return frame.join(self.table, on="scope", how="left", maintain_order="left")


def replica_of(scopes: pl.Series) -> pl.Series:
    """Return the number of the replica of ``tf.distribute`` that each scope is of, else 0."""
    frame = scopes.alias("scope").to_frame()
    replicas = frame.unique().with_columns(
        pl.col("scope").cast(pl.String).str.extract(_TF_REPLICA).cast(pl.Int64).alias("replica")
    )
    found = frame.join(replicas, on="scope", how="left", nulls_equal=True, maintain_order="left")
    return found["replica"].fill_null(0)


def _unmarked(place: _Place, path: _Path, trains: bool) -> str | None:
    """Return the direction of a scope that names none."""
    if place.transfer or (path and _layer(path)[2] == "optimizer"):
        return None
    return "forward" if path or not trains else None


def _operator(scope: str) -> str | None:
    """Return the operator that a scope names, beyond the operator's own name.

    ``relu`` of ``jit(step)/net/relu1/jit(relu)/max``, ``max`` of ``jit(step)/net/max``,
    ``batchnorm`` of ``net/bn/batchnorm/mul_1``.
    """
    components = _split(scope, "/")
    if _called(components[0]) is None:
        return _TF_NORM if _TF_NORM in components[1:] else None
    function = _called(components[-2]) if len(components) > 2 else None
    return function if function and not function.startswith("_") else components[-1]


def _split(text: str, separator: str) -> list[str]:
    """Return the parts of ``text`` between separators that are in no brackets."""
    parts, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == separator and depth <= 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def _called(component: str) -> str | None:
    """Return the function that is called, null where the component is not a call."""
    wrapped = _WRAPPED.fullmatch(component)
    return wrapped[2] if wrapped and wrapped[1] in _CALLS else None


def _place(scope: str) -> _Place:
    """Return the place that a scope names; of several joined by ``;`` the first in a layer."""
    pieces = [_split(piece, "/") for piece in scope.split(";")]
    places = [_place_jax(piece) for piece in pieces if _called(piece[0]) is not None]
    if not places:
        return _place_tf([part for part in scope.split("/") if part])
    return next((place for place in places if len(place.parts) > 1), places[0])


def _place_jax(components: list[str]) -> _Place:
    *scopes, operator = components
    if operator.startswith("("):
        # Collectives that XLA made one of: jit(step)/(conv1/psum:conv2/psum).
        pieces = _split(operator[1:-1], ":")
        places = [_place_jax([*scopes, *_split(piece, "/")]) for piece in pieces]
        paths = {place.parts[:-1] for place in places}
        directions = {place.direction for place in places}
        path = paths.pop() if len(paths) == 1 else ()
        return _Place((*path, operator), directions.pop() if len(directions) == 1 else None, True)
    parts: list[str] = []
    transformations: set[str] = set()
    at = 0
    while at < len(scopes) and not _JAX_INNER.fullmatch(scopes[at]):
        inner = scopes[at]
        loop = _JAX_LOOP.match("/".join(components[at:]))
        while wrapped := _WRAPPED.fullmatch(inner):
            transformations.add(wrapped[1])
            inner = "" if wrapped[1] in _CALLS else wrapped[2]
        # What stands in brackets is the program's, whatever it is called.
        if inner and (inner != scopes[at] or not (loop or _JAX_PRIMITIVE.fullmatch(inner))):
            parts += inner.split("/")
        transformations.add(scopes[at])
        at += loop[0].count("/") + 1 if loop else 1
    backward = transformations & {"transpose", _REMATERIALIZED}
    forward = "jvp" in transformations
    direction = "backward" if backward else "forward" if forward else None
    return _Place((*parts, operator), direction, True)


def _place_tf(components: list[str]) -> _Place:
    """Return the place that the name of an operator of TensorFlow names.

    A function of a loop, a conditional or a gradient repeats the scope that it is called in:
    ``net/rnn/while/body/_1/net/rnn/while/cell/MatMul``.
    """
    # The transfer of a tensor is named after the operator that made it: "net/fc/MatMul/_8".
    sent = len(components) > 1 and _TF_NUMBER.fullmatch(components[-1]) is not None
    components = components[:-1] if sent else components
    around: list[str] = []
    path: list[str] = []
    loops: set[_Path] = set()
    backward = False
    at = 0
    while at < len(components):
        part, behind = components[at], components[at + 1 : at + 3]
        if part == "gradient_tape" or (part == "gradients" and (backward or not path)):
            backward = True
            around, path = _joined(around, path), []
        elif (
            _TF_LOOP.fullmatch(part)
            and len(behind) == 2
            and behind[0] in _TF_BRANCH
            and _TF_NUMBER.fullmatch(behind[1])
        ):
            around, path = _joined(around, path), []
            # The gradient of a loop repeats the scope of the loop: "net/while/net/while_grad/body".
            again = part.endswith("_grad") or "_grad_" in part
            begin = len(around) - 1 - around[::-1].index(around[0]) if again and around else 0
            loops.add((*around[begin:], part.replace("_grad", "")))
            at += 2
        elif not _TF_FLOW.fullmatch(part):
            path.append(part)
        at += 1
    parts = tuple(_joined(around, path))
    last = _SUFFIX.sub("", parts[-1]) if parts else ""
    transfer = sent or _TF_TRANSFER.fullmatch(last) is not None
    direction = "backward" if backward and not transfer else None
    return _Place(parts, direction, transfer=transfer, loops=frozenset(loops))


def _joined(around: list[str], path: list[str]) -> list[str]:
    return path if around and path and around[0] == path[0] else around + path


def _path(place: _Place, operators: set[str], names: set[str], loops: AbstractSet[_Path]) -> _Path:
    """Return the layer's path: without the operator, and the scopes that operators open."""
    if place.of_jax:
        return place.parts[:-1]
    parts = place.parts
    path = tuple(
        part for i, part in enumerate(parts[:-1], 1) if not loops or parts[:i] not in loops
    )
    functions = (i for i, part in enumerate(path) if _TF_FUNCTION.fullmatch(_SUFFIX.sub("", part)))
    path = path[: next(functions, len(path))]
    if path and _TF_READ.fullmatch(path[-1]) and _SUFFIX.sub("", parts[-1]) == "ReadVariableOp":
        path = path[:-1]
    while path and (
        _TF_INNER.fullmatch(_SUFFIX.sub("", path[-1]))
        or _SUFFIX.sub("", path[-1]) in operators
        or SEPARATOR.join(path) in names
        or (len(path) > 1 and _TF_DROPOUT.fullmatch(path[-1]) and "drop" in path[-2])
    ):
        path = path[:-1]
    return () if len(path) == 1 and _TF_UPDATE.fullmatch(path[0]) else path


def _layer(path: tuple[str, ...]) -> Layer:
    if _OPTIMIZER.fullmatch(path[0]):
        return path[0], None, "optimizer"
    return SEPARATOR.join(path), None, "layer"
