"""Layers and directions from name scopes: TensorFlow's operator names, XLA's ``op_name``.

``AlexNet/conv1/Conv2D`` is an operator of layer ``AlexNet.conv1``. Operators of its backward pass
are ``gradient_tape/AlexNet/conv1/Conv2D/Conv2DBackpropFilter`` in TensorFlow and
``jit(step)/transpose(jvp(AlexNet))/conv1/conv_general_dilated`` in JAX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec
import polars as pl

from traceana.columns.nesting import NONE, Ints
from traceana.enrich.layers.source import SEPARATOR, Layer, OpLayers, Program
from traceana.trace.schema import MODULE_SCOPE, Direction

_WRAPPED: Final = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_CALLS: Final = frozenset({"jit", "pjit", "pmap", "xmap", "shard_map", "custom_jvp", "custom_vjp"})
"""JAX's transformations with a function name in parentheses; others contain a scope."""
_JAX_PRIMITIVE: Final = re.compile(
    r"closed_call|core_call|pjit|pmap|xmap|shard_map|checkpoint|remat\w*|branch_\d+_fun|"
    r"custom_[jv]\w+_call|rematted_computation"
)
"""Primitives that contain a function; its scopes are below theirs."""
_JAX_LOOP: Final = re.compile(
    r"while/body(?=/|$)|while/cond(?=/)|cond(?=/branch_\d+_fun)|scan(?=/(?:while|body|closed_call)/)"
)
"""A loop or a conditional. Without the following part, these words are scopes of the program."""
_JAX_INNER: Final = re.compile(r"jit\(_?threefry\w*\)")
"""JAX's own functions that open scopes."""
_JAX_EINSUM: Final = "->"
"""In the scope that jax.numpy.einsum opens: its subscripts, ``bqd,bkd->bqk``."""
_REMATERIALIZED: Final = "rematted_computation"
_JAX_CHECKPOINT: Final = re.compile(r"checkpoint|remat\d*")
"""The call of a checkpointed function, as a scope around it or as an operator of its own."""

_TF_LOOP: Final = re.compile(r"(?:while|cond)(?:_grad)?(?:_\d+)?")
_TF_BRANCH: Final = frozenset({"body", "cond", "then", "else"})
_TF_ACCUMULATOR: Final = "accumulator"
"""In a loop's gradient, the list of an operator's results: ``net/rnn/while/Tanh_0/accumulator``."""
_TF_NUMBER: Final = re.compile(r"_\d+")
_TF_FLOW: Final = re.compile(
    r"(?:Stateful)?PartitionedCall(?:_\d+)?|replica_\d+|GroupCrossDeviceControlEdges_\d+|"
    # Scopes of operators that TensorFlow's graph optimizer (Grappler) substituted.
    r"(?:ArithmeticOptimizer|ConstantFolding|ConstantFoldingCtrl)(?:_\d+)?"
)
"""Scopes of calls, replicas and graph rewriting."""
_TF_REPLICA: Final = r"(?:^|/)replica_(\d+)/"
_TF_TRANSFER: Final = re.compile(r"_?(?:Host)?(?:Send|Recv)|\w*Iterator\w*")
"""Operators that move data between devices or fetch the input."""
_TF_GRADIENT: Final = re.compile(
    r"_?(?!Accumulate)[A-Z]\w*(?:BackpropFilter|Grad)(?:V\d+)?", re.ASCII
)
"""Operators that only a backward pass runs: a transposed convolution is a ``BackpropInput``."""
_TF_UPDATE: Final = re.compile(r"update_\d+(?:_\d+)?")
"""Scopes in which a replica assigns to a variable."""
_TF_FUNCTION: Final = re.compile(r"moments|batchnorm|\w+_grad")
"""Scopes of functions whose operators all belong to the layer around them."""
_TF_NORM: Final = "batchnorm"
"""The scope of a batch normalization that is not fused: a dozen operators."""
_TF_INNER: Final = re.compile(
    r"convolution|stateless_dropout|(?:stateless_)?random_uniform|einsum|Einsum|Tensordot|truediv|"
    r"TensorArray(?:V2)?(?:Unstack|Stack|Read|Write)|"
    # Operators that were fused into others, so that only their scopes are in the trace.
    r"Conv[123]D(?:Transpose)?|convolution_transpose|MatMul|BiasAdd|Add|Reshape|Shape|Cast|Squeeze|"
    r"ExpandDims|Transpose|Relu6?|Elu|Tanh|Sigmoid|Softmax|LogSoftmax|(?:Max|Avg)Pool(?:\dd|\dD)?|"
    r"Identity|[A-Z]\w*V\d|Mean|Sum|FusedBatchNorm|LRN|SparseSoftmaxCrossEntropyWithLogits|ReadVariableOp"
)
"""Scopes of TensorFlow's own functions within a layer."""
_TF_READ: Final = re.compile(r"(?:add|sub|mul|matmul|split)(?:_\d+)?")
"""Scopes of functions that read a variable; layers with these names have no variables."""
_TF_DEPTHWISE: Final = re.compile(r"(?:separable_conv\w+|depthwise)(?:_\d+)?")
"""Scopes in a layer around the operator of a depthwise convolution, and around what it reads."""
_TF_DROPOUT: Final = re.compile(r"dropout")
_SUFFIX: Final = re.compile(r"_\d+$")
_OPTIMIZER: Final = re.compile(
    r"(?i)(?:optimizer|gradient_?descent|sgd|n?adam\w*|rm_?sprop|ada_?(?:grad|delta|factor)|ftrl|lamb|lion|momentum|lars|"
    r"muon|schedule_free_\w+|global_norm|clip_by_(?:global_|average_)?norm)(?:_\d+)*"
)
_ASSIGNS: Final = r"^(?:Assign\w*VariableOp|ResourceApply\w+)$"
_NEED_GRADIENTS: Final = 0.25
"""Least share of an optimizer's operators that read gradients: of Keras', almost half or more."""

_Path = tuple[str, ...]


class _Scope(NamedTuple):
    """One parsed scope: its ``parts``, with the operator last, and its direction if it has one.

    ``loops`` are the paths of TensorFlow's loops and conditionals in it.
    """

    parts: _Path
    direction: str | None
    of_jax: bool = False
    of_module: bool = False
    transfer: bool = False
    loops: frozenset[_Path] = frozenset()


class ScopeLayers(msgspec.Struct, frozen=True):
    """The layers of name scopes.

    ``table`` has the columns scope, layer, direction and operator. ``operator`` is the function or
    primitive that the operator implements, null if that is the operator's own name. ``gradients``
    are the names of TensorFlow's operators of gradients without a scope, which run outside a
    tf.function. ``trains`` is true if there is one, or if some scope is of a gradient;
    ``of_modules`` if all scopes, if any, are the modules of a CUDA graph's kernels.
    """

    table: pl.DataFrame
    layers: list[Layer]
    trains: bool
    gradients: pl.Series
    of_modules: bool

    @classmethod
    def of(cls, ops: pl.DataFrame, activities: pl.DataFrame) -> ScopeLayers:
        """Return the layers of the distinct scopes of ``ops`` and ``activities``.

        A scope without a marked pass belongs to the forward pass if it belongs to a layer. Outside
        layers it belongs to the forward pass only if the program does not train: otherwise it may
        be the optimizer, a metric or the input. Transfers, the optimizer and the input pipeline
        (:func:`_roles`) belong to neither pass. Rematerialization belongs to the backward pass.
        """
        scopes = pl.concat([ops["scope"], activities["scope"]]).unique(maintain_order=True)
        distinct = scopes.drop_nulls()
        texts = distinct.cast(pl.String).to_list()
        operators = set(ops["name"].unique().cast(pl.String).to_list()) if texts else set()
        found = [_parsed(text) for text in texts]
        names = {SEPARATOR.join(scope.parts) for scope in found}
        # Compiled by XLA, a loop of TensorFlow is an operator, and its functions have no scopes of
        # their own: ``net/rnn/while``, ``net/rnn/while/cell/MatMul``.
        loops = {
            scope.parts
            for scope in found
            if not scope.of_jax and scope.parts and _TF_LOOP.fullmatch(scope.parts[-1])
        }.union(*(scope.loops for scope in found))
        paths = [_path(scope, operators, names, loops) for scope in found]
        roles = _roles(found, paths, distinct, ops)
        gradients = _names_matching(_TF_GRADIENT, ops.filter(pl.col("scope").is_null())["name"])
        trains = len(gradients) > 0 or any(scope.direction for scope in found)
        layers: dict[Layer, int] = {}
        codes: list[int] = []
        directions: list[str | None] = []
        for scope, path in zip(found, paths, strict=True):
            role = roles.get(path[0]) if path else None
            name = SEPARATOR.join(path) if role is None else path[0]
            layer = name, None, role or "layer"
            codes.append(layers.setdefault(layer, len(layers)) if path else NONE)
            no_pass = scope.of_module or scope.transfer or role or (trains and not path)
            directions.append(scope.direction or (None if no_pass else "forward"))
        table = pl.DataFrame(
            {
                "scope": distinct,
                "layer": pl.Series(codes, dtype=pl.Int64),
                "direction": pl.Series(directions, dtype=Direction),
                "operator": pl.Series([_operator(text) for text in texts], dtype=pl.String),
            }
        )
        of_modules = all(scope.of_module for scope in found)
        return cls(table, list(layers), trains, gradients, of_modules)

    def layer_of(self, scopes: pl.Series) -> Ints:
        """Return the index into ``layers`` of each scope, NONE without a layer."""
        return self._rows_of(scopes)["layer"].fill_null(NONE).to_numpy()

    def direction_of(self, scopes: pl.Series) -> pl.Series:
        """Return the direction of each scope, null without a scope and for neither pass."""
        return self._rows_of(scopes)["direction"]

    def direction_of_ops(self, ops: pl.DataFrame) -> pl.Series:
        """Return the direction of ``ops`` from their scopes, else their present direction.

        If the scopes of a training program mark passes, an operator without a scope belongs to
        neither pass, except for the gradients.
        """
        transfers = _names_matching(_TF_TRANSFER, ops["name"])
        if not len(transfers) and self.table.is_empty() and not self.trains:
            return ops["direction"].cast(Direction)
        has_scope = pl.col("scope").is_not_null()
        scoped = pl.col("name").is_in(transfers.implode()) | has_scope
        return ops.select(
            pl.when(~has_scope & pl.col("name").is_in(self.gradients.implode()))
            .then(pl.lit("backward", Direction))
            .when(scoped | self.trains)
            .then(self.direction_of(ops["scope"]))
            .otherwise(pl.col("direction").cast(Direction))
            .alias("direction")
        ).to_series()

    def operator_of(self, scopes: pl.Series) -> pl.Series:
        """Return the operator in each scope, null if that is the operator's own name."""
        return self._rows_of(scopes)["operator"]

    def _rows_of(self, scopes: pl.Series) -> pl.DataFrame:
        if self.table.is_empty():
            return self.table.clear(len(scopes))
        frame = scopes.alias("scope").to_frame()
        return frame.join(self.table, on="scope", how="left", maintain_order="left")


def name_scopes(program: Program) -> OpLayers:
    """Return the layers of the name scopes of operators, and of the operators around others."""
    of_op = program.scopes.layer_of(program.ops["scope"])
    return OpLayers(program.nesting.inherit(of_op), program.scopes.layers)


def _names_matching(pattern: re.Pattern[str], names: pl.Series) -> pl.Series:
    """Return the distinct ``names`` that are of the pattern."""
    distinct = names.unique().drop_nulls()
    found = [pattern.fullmatch(name) is not None for name in distinct.cast(pl.String)]
    return distinct.filter(pl.Series(found, dtype=pl.Boolean))


def replica_of(scopes: pl.Series) -> pl.Series:
    """Return the number of each scope's ``tf.distribute`` replica, 0 without one."""
    frame = scopes.alias("scope").to_frame()
    replicas = frame.unique().with_columns(
        pl.col("scope").cast(pl.String).str.extract(_TF_REPLICA).cast(pl.Int64).alias("replica")
    )
    found = frame.join(replicas, on="scope", how="left", nulls_equal=True, maintain_order="left")
    return found["replica"].fill_null(0)


def _operator(scope: str) -> str | None:
    """Return the operator in a scope, or ``None`` if that is the operator's own name.

    ``relu`` of ``jit(step)/net/relu1/jit(relu)/max``, ``max`` of ``jit(step)/net/max``,
    ``batchnorm`` of ``net/bn/batchnorm/mul_1``.
    """
    components = _split(scope, "/")
    if _called(components[0]) is None:
        return _TF_NORM if _TF_NORM in components[1:] else None
    function = _called(components[-2]) if len(components) > 2 else None
    return function if function and not function.startswith("_") else components[-1]


def _split(text: str, separator: str) -> list[str]:
    """Return the parts of ``text`` between separators outside parentheses."""
    parts, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == separator and depth <= 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def _called(component: str) -> str | None:
    """Return the called function, ``None`` if the component is not a call."""
    wrapped = _WRAPPED.fullmatch(component)
    return wrapped[2] if wrapped and wrapped[1] in _CALLS else None


def _parsed(scope: str) -> _Scope:
    """Return a parsed scope; of several joined by ``;``, the first that is in a layer."""
    if scope.startswith(MODULE_SCOPE):
        # Of both passes: a graph may hold a whole training step.
        return _Scope((scope.removeprefix(MODULE_SCOPE),), None, of_module=True)
    pieces = [_split(piece, "/") for piece in scope.split(";")]
    of_jax = [_parsed_jax(piece) for piece in pieces if _called(piece[0]) is not None]
    if not of_jax:
        return _parsed_tf([part for part in scope.split("/") if part])
    return next((parsed for parsed in of_jax if len(parsed.parts) > 1), of_jax[0])


def _parsed_jax(components: list[str]) -> _Scope:
    *scopes, operator = components
    if operator.startswith("("):
        # Collectives that XLA combined: jit(step)/(conv1/psum:conv2/psum).
        pieces = _split(operator[1:-1], ":")
        combined = [_parsed_jax([*scopes, *_split(piece, "/")]) for piece in pieces]
        paths = {parsed.parts[:-1] for parsed in combined}
        directions = {parsed.direction for parsed in combined}
        path = paths.pop() if len(paths) == 1 else ()
        return _Scope((*path, operator), directions.pop() if len(directions) == 1 else None, True)
    parts: list[str] = []
    transformations: set[str] = set()
    # In a backward pass the scope of a checkpointed call stands there twice:
    # transpose(jvp(net))/block/jvp(net)/block/checkpoint/conv1.
    again = 0
    at = 0
    while at < len(scopes) and not _JAX_INNER.fullmatch(scopes[at]):
        inner = scopes[at]
        loop = _JAX_LOOP.match("/".join(components[at:]))
        if _JAX_CHECKPOINT.fullmatch(inner) and parts[:again] == parts[again:]:
            parts = parts[again:]
        if "transpose" in transformations and inner.startswith("jvp("):
            again = len(parts)
        while wrapped := _WRAPPED.fullmatch(inner):
            transformations.add(wrapped[1])
            inner = "" if wrapped[1] in _CALLS else wrapped[2]
        # A name in parentheses is the program's, even if it equals a primitive's.
        if inner and (inner != scopes[at] or not (loop or _JAX_PRIMITIVE.fullmatch(inner))):
            parts += [part for part in inner.split("/") if _JAX_EINSUM not in part]
        transformations.add(scopes[at])
        at += loop[0].count("/") + 1 if loop else 1
    if _JAX_CHECKPOINT.fullmatch(operator) and parts[:again] == parts[again:]:
        parts = parts[again:]
    backward = transformations & {"transpose", _REMATERIALIZED}
    forward = "jvp" in transformations
    direction = "backward" if backward else "forward" if forward else None
    return _Scope((*parts, operator), direction, True)


def _parsed_tf(components: list[str]) -> _Scope:
    """Return the parsed scope of a TensorFlow operator.

    A function of a loop, a conditional or a gradient repeats the scope of its call:
    ``net/rnn/while/body/_1/net/rnn/while/cell/MatMul``.
    """
    # The transfer of a tensor has the name of the operator that produced it: "net/fc/MatMul/_8".
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
    return _Scope(parts, direction, transfer=transfer, loops=frozenset(loops))


def _joined(around: list[str], path: list[str]) -> list[str]:
    return path if around and path and around[0] == path[0] else around + path


def _repeated(parts: _Path, loops: AbstractSet[_Path]) -> _Path:
    """Return ``parts`` without the loop that a gradient repeats: ``net/while/net/while/Tanh``."""
    for end in range(1, len(parts)):
        if parts[:end] in loops and parts[end : 2 * end - 1] == parts[: end - 1]:
            return parts[end:] if parts[2 * end - 1 :] else parts
    return parts


def _path(scope: _Scope, operators: set[str], names: set[str], loops: AbstractSet[_Path]) -> _Path:
    """Return the layer's path: the scope without the operator and the operators' own scopes."""
    if scope.of_module:
        return scope.parts
    if scope.of_jax:
        return scope.parts[:-1]
    parts = _repeated(scope.parts, loops) if loops else scope.parts
    if len(parts) > 1 and parts[-1] == _TF_ACCUMULATOR:
        parts = parts[:-1]
    path = tuple(
        part for i, part in enumerate(parts[:-1], 1) if not loops or parts[:i] not in loops
    )
    functions = (i for i, part in enumerate(path) if _TF_FUNCTION.fullmatch(_SUFFIX.sub("", part)))
    path = path[: next(functions, len(path))]
    operator = _SUFFIX.sub("", parts[-1]) if parts else ""
    if path and _TF_READ.fullmatch(path[-1]) and operator == "ReadVariableOp":
        path = path[:-1]
    depthwise = operator == "ReadVariableOp" or operator.startswith("DepthwiseConv2dNative")
    if len(path) > 1 and depthwise and _TF_DEPTHWISE.fullmatch(path[-1]):
        path = path[:-1]
    while path and (
        _TF_INNER.fullmatch(_SUFFIX.sub("", path[-1]))
        or _SUFFIX.sub("", path[-1]) in operators
        or SEPARATOR.join(path) in names
        or (len(path) > 1 and _TF_DROPOUT.fullmatch(path[-1]) and "drop" in path[-2])
    ):
        path = path[:-1]
    return () if len(path) == 1 and _TF_UPDATE.fullmatch(path[0]) else path


def _roles(
    found: Sequence[_Scope], paths: Sequence[_Path], scopes: pl.Series, ops: pl.DataFrame
) -> dict[str, str]:
    """Return the role of each outermost scope that belongs to neither pass: optimizer or data.

    Optimizers have known names. Of TensorFlow's other scopes without a gradient, those that assign
    variables, with many operators that always run after the start of the backward pass, are
    optimizers, too. A loss may run late as well: nothing waits for its value. Scopes whose
    operators run on
    other threads than the model's are a ``tf.data`` pipeline, which has its own threads. The
    remaining scopes are parts of the forward pass, such as a loss or a frozen model. The order of
    XLA's instructions is not that of the passes.
    ``paths`` and ``scopes`` belong to the scopes ``found``.
    """
    outermost = {path[0] for path in paths if path}
    roles = dict.fromkeys(filter(_OPTIMIZER.fullmatch, outermost), "optimizer")
    marked = [scope.direction is not None for scope in found]
    model = {path[0] for path, is_marked in zip(paths, marked, strict=True) if path and is_marked}
    of_jax = {path[0] for scope, path in zip(found, paths, strict=True) if path and scope.of_jax}
    if not model or not outermost - model - roles.keys() - of_jax:
        return roles
    table = pl.DataFrame(
        {
            "scope": scopes,
            "outermost": [path[0] if path else None for path in paths],
            "backward": [scope.direction == "backward" for scope in found],
        },
        schema_overrides={"outermost": pl.String},
    )
    key = ("process", "scope", "name")
    ran = (
        ops.filter(pl.col("instruction").is_null())
        .select(*key, "thread", "start")
        .join(table, on="scope")
        .sort("start")
        .with_columns(
            pl.int_range(pl.len()).over(key).alias("run"), pl.len().over(key).alias("runs")
        )
    )
    threads = ran.filter(pl.col("outermost").is_in(model) | pl.col("backward"))["thread"].unique()
    # The first operator of the backward pass that runs once in each: others are in loops.
    first = (
        ran.filter("backward")
        .filter(pl.col("runs") == pl.col("runs").min().over("process"))
        .filter(pl.col("scope") == pl.col("scope").first().over("process"))
        .group_by("process", "runs", "run")
        .agg(pl.col("start").min().alias("begin"))
    )
    of_scopes = (
        ran.filter(pl.col("outermost").is_in(outermost - model - roles.keys() - of_jax))
        .join(first, on=("process", "runs", "run"), how="left", nulls_equal=True)
        .group_by("outermost", *key)
        .agg(
            (pl.col("start") > pl.col("begin")).fill_null(value=False).all().alias("after"),
            (~pl.col("thread").is_in(threads.implode()))
            .fill_null(value=False)
            .all()
            .alias("apart"),
        )
        .group_by("outermost")
        .agg(
            pl.col("after").mean(),
            pl.col("apart").all(),
            pl.col("name").cast(pl.String).str.contains(_ASSIGNS).any().alias("assigns"),
        )
    )
    for scope, after, apart, assigns in of_scopes.iter_rows():
        if apart:
            roles[scope] = "data"
        elif assigns and after > _NEED_GRADIENTS:
            roles[scope] = "optimizer"
    return roles
