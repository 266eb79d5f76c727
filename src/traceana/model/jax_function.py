"""Layers of a JAX function, from its equations grouped by ``jax.named_scope``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
from msgspec.structs import replace

from traceana.errors import InvalidInputError
from traceana.flops import convolution
from traceana.flops.matmul import matmul
from traceana.model.jaxpr import (
    Equation,
    Program,
    abstract,
    dtypes_of,
    inline,
    leaves,
    live,
    refused,
)
from traceana.model.manifest_rows import Details, finished, model_inputs
from traceana.model.recorded_calls import PARAMETERS, ModelCall, Pads, Recorded, Recording, renamed
from traceana.runs.layer_manifest import Layout, Manifest, Shape, manifest


def describe_function(
    function: Callable[..., Any],
    call: ModelCall,
    name: str | None,
    types: Mapping[str, str],
    parameters: Any,
) -> Manifest:
    """Return the manifest of a JAX function; see :func:`traceana.describe`.

    Layers are the innermost scopes, and others with a convolution or a matrix product. Parameters
    are the floating-point arrays in ``parameters``, or those that the function closes over.
    """
    dtypes = dtypes_of(call, leaves(parameters))
    arguments, named = call.arguments(abstract(call, dtypes))

    def run(parameters: Any, *inputs: Any, **options: Any) -> Any:
        arguments = inputs if parameters is None else (parameters, *inputs)
        return function(*arguments, **options)

    try:
        closed = jax.make_jaxpr(run)(parameters, *arguments, **named)
    except Exception as error:  # a function may raise anything
        raise refused(call, error) from error
    program = live(inline(closed))
    trained = _parameters(program, parameters)
    layout = layout_of_program(program)
    recording = _recorded(program, trained, layout)
    if not recording.layers:
        raise InvalidInputError(
            "the function has no named scopes: put each layer under jax.named_scope('its name')"
        )
    layers = tuple(
        finished(recorded, position, details(recorded.layer, recorded, types))
        for position, recorded in enumerate(recording.layers)
    )
    function_name = getattr(function, "__name__", "<lambda>")
    return manifest(
        network=name or ("function" if function_name == "<lambda>" else function_name),
        framework="JAX",
        inputs=model_inputs(call, dtypes, layers, layout),
        layers=layers,
        parameter_count=sum(prod(program.values[number].shape) for number in trained),
    )


def _parameters(program: Program, tree: Any) -> dict[int, str | None]:
    """Return the values that are parameters, with their names or None."""
    if tree is None:
        return {number: None for number in program.constants.values() if _floating(program, number)}
    flat = jax.tree_util.tree_leaves_with_path(tree)
    named = zip(program.arguments, flat, strict=False)
    return {
        number: str(getattr(path[-1], "key", getattr(path[-1], "name", ""))) or None
        for number, (path, _) in named
        if path and _floating(program, number)
    }


def _floating(program: Program, number: int) -> bool:
    value = program.values[number]
    return bool(value.shape) and bool(jnp.issubdtype(value.dtype, jnp.floating))


def _recorded(program: Program, trained: Mapping[int, str | None], layout: Layout) -> Recording:
    # The first parameter of every value that depends on parameters only.
    roots = {number: number for number in trained}
    roots |= {part: whole for part, whole in program.part_of.items() if whole in trained}
    for equation in program.equations:
        inputs = [number for number in equation.inputs if number is not None]
        if inputs and all(number in roots for number in inputs):
            roots |= dict.fromkeys(equation.outputs, roots[inputs[0]])
    scopes = {equation.scope for equation in program.equations}
    outer = {scope[:depth] for scope in scopes for depth in range(len(scope))}
    # The number of uses of each value; a result is one use.
    users: Counter[int | None] = Counter(program.results)
    for equation in program.equations:
        users.update(equation.inputs)
    recording = Recording()
    for call in _calls(program, outer):
        scope = call[0].scope
        in_values, out = _boundary(program, call, roots, users)
        if not out:
            continue
        recording.add(
            Recorded(
                key=scope,
                path="/".join(scope),
                layer=Scope(program, call, roots, trained),
                inputs=[tuple(program.values[number].shape) for number in in_values],
                outputs=[tuple(program.values[number].shape) for number in out],
                axes=layout,
                layout=layout,
                times=call[0].times,
            )
        )
    return recording


def _calls(program: Program, outer: set[tuple[str, ...]]) -> Iterator[list[Equation]]:
    """Yield the calls of layers in order: consecutive equations of one scope."""
    current: list[Equation] = []
    for equation in program.equations:
        scope = equation.scope
        if not scope or (scope in outer and equation.primitive not in WEIGHTED):
            continue
        if current and current[0].scope != scope:
            yield current
            current = []
        current.append(equation)
    if current:
        yield current


def _boundary(
    program: Program,
    call: list[Equation],
    roots: Mapping[int, int],
    users: Mapping[int | None, int],
) -> tuple[list[int], list[int]]:
    """Return the input and output values of a call."""
    within = Counter(number for equation in call for number in equation.inputs)
    computed = {number for equation in call for number in equation.outputs}
    in_values = dict.fromkeys(
        number
        for equation in call
        for number in equation.inputs
        if number is not None and number not in computed and number not in roots
    )
    out = [number for number in sorted(computed) if users[number] > within[number]]
    return (
        [
            number
            for number in in_values
            if program.values[number].shape and not _is_key(program, number)
        ],
        [number for number in out if not _is_key(program, number)],
    )


def _is_key(program: Program, number: int) -> bool:
    # Random keys have their own dtype, or are uint32.
    dtype = program.values[number].dtype
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32)


WEIGHTED: Final = ("conv_general_dilated", "dot_general")
_MOVES: Final = frozenset(("transpose", "reshape", "squeeze", "broadcast_in_dim", "copy", "rev"))
_WITHOUT_WORK: Final = _MOVES | {"convert_element_type", "stop_gradient", "stack"}


class Scope(msgspec.Struct, frozen=True):
    """One call of a scope; ``roots`` maps a value computed from parameters only to a parameter."""

    program: Program
    equations: Sequence[Equation]
    roots: Mapping[int, int]
    trained: Mapping[int, str | None]

    def shape(self, number: int | None) -> Shape:
        """Return a value's shape; a literal has an empty shape."""
        return () if number is None else tuple(self.program.values[number].shape)

    def is_parameter(self, number: int | None) -> bool:
        """Return whether a value depends on parameters only."""
        return number in self.roots

    def all(self, *primitives: str) -> list[Equation]:
        """Return the equations of these primitives."""
        return [equation for equation in self.equations if equation.primitive in primitives]


def layout_of_program(program: Program) -> Layout:
    """Return the layout of images: that of the first convolution, else channels last."""
    for equation in program.equations:
        if equation.primitive == "conv_general_dilated":
            first = equation.params["dimension_numbers"].lhs_spec[1] == 1
            return "channels_first" if first else "channels_last"
    return "channels_last"


def details(scope: Scope, recorded: Recorded, types: Mapping[str, str]) -> Details:
    """Return type and arguments of a scope; ``types`` is keyed by its path or last name."""
    last = recorded.path.rpartition("/")[2]
    described = _without_given_type(scope, recorded, last)
    given_type = types.get(recorded.path) or types.get(last)
    return described if given_type is None else replace(described, type=given_type)


def _without_given_type(scope: Scope, recorded: Recorded, last: str) -> Details:
    weighted = scope.all(*WEIGHTED)
    if len(weighted) == 1 and weighted[0].primitive == "conv_general_dilated":
        return _convolution(scope, weighted[0])
    if len(weighted) == 1:
        return _product(scope, weighted[0])
    if weighted:
        mixing = [
            equation for equation in weighted if not any(map(scope.is_parameter, equation.inputs))
        ]
        attention = len(mixing) >= 2 and scope.all("exp")
        return Details(
            type="MultiheadAttention" if attention else last,
            framework_type="jax.named_scope",
            parameters=_named(scope, {}),
            flops=sum(_flops(scope, equation) for equation in weighted),
        )
    windows = scope.all("reduce_window_max", "reduce_window_sum")
    if windows:
        return _window(windows[0], recorded.axes)
    type_, primitive = _without_weights(scope, last)
    return Details(type_, primitive, parameters=_named(scope, {}))


def _without_weights(scope: Scope, last: str) -> tuple[str, str]:
    """Return the type of a scope without weights and windows, and the deciding primitive."""
    has = {equation.primitive for equation in scope.equations}
    work = has - _WITHOUT_WORK
    if "random_bits" in has:
        return "Dropout", "jax.random.bits"
    if "exp" in has and "reduce_sum" in has:
        return ("LogSoftmax" if "log" in has else "Softmax"), "jax.lax.exp"
    if has & {"rsqrt", "sqrt"} and "reduce_sum" in has:
        reduction = scope.all("reduce_sum")[0]
        rank = len(scope.shape(reduction.inputs[0]))
        if 0 in reduction.params["axes"]:
            return f"BatchNorm{max(rank - 2, 1)}d", "jax.lax.rsqrt"
        return ("LayerNorm" if len(scope.all("reduce_sum")) > 1 else "RMSNorm"), "jax.lax.rsqrt"
    if "gather" in has and scope.is_parameter(scope.all("gather")[0].inputs[0]):
        return "Embedding", "jax.lax.gather"
    if work == {"max"} and None in scope.all("max")[0].inputs:
        return "ReLU", "jax.lax.max"
    simple = {"logistic": "Sigmoid", "tanh": "Tanh", "erf": "GELU", "erfc": "GELU"}
    for primitive, type_ in simple.items():
        if primitive in work and (work == {primitive} or type_ == "GELU"):
            return type_, f"jax.lax.{primitive}"
    if work == {"logistic", "mul"}:
        return "SiLU", "jax.lax.logistic"
    if not work:
        return ("Permute" if has == {"transpose"} else "Reshape"), "jax.lax.reshape"
    return last, "jax.named_scope"


def _convolution(scope: Scope, equation: Equation) -> Details:
    params = equation.params
    order = params["dimension_numbers"].rhs_spec
    weight = scope.shape(equation.inputs[1])
    kernel = tuple(weight[axis] for axis in order[2:])
    spread, dilation = tuple(params["lhs_dilation"]), tuple(params["rhs_dilation"])
    transposed = _transposed(equation)
    padding: Pads = tuple((int(before), int(after)) for before, after in params["padding"])
    if transposed:
        # PyTorch's padding of a transposed convolution is the difference from the full window.
        reach = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        padding = tuple(
            (max(whole - before, 0), max(whole - after, 0))
            for whole, (before, after) in zip(reach, padding, strict=True)
        )
    # PyTorch's order of axes: (K, C / groups, R, S); of a transposed convolution (C, K, R, S).
    first = (order[1], order[0]) if transposed else (order[0], order[1])
    shape = tuple(weight[axis] for axis in (*first, *order[2:]))
    name = "ConvTranspose" if transposed else "Conv"
    return Details(
        type=f"{name}{len(kernel)}d",
        framework_type="jax.lax.conv_general_dilated",
        kernel=kernel,
        stride=spread if transposed else tuple(params["window_strides"]),
        padding=padding,
        dilation=dilation,
        groups=int(params["feature_group_count"]),
        parameters=_named(scope, {equation.inputs[1]: shape}),
        flops=_flops(scope, equation),
    )


def _transposed(equation: Equation) -> bool:
    return any(step > 1 for step in equation.params["lhs_dilation"])


def _product(scope: Scope, equation: Equation) -> Details:
    (contracted, _) = equation.params["dimension_numbers"]
    for side in (1, 0):
        number = equation.inputs[side]
        if scope.is_parameter(number):
            shape = scope.shape(number)
            axes = contracted[side]
            rest = [axis for axis in range(len(shape)) if axis not in axes]
            weight = (prod(shape[axis] for axis in rest), prod(shape[axis] for axis in axes))
            return Details(
                type="Linear",
                framework_type="jax.lax.dot_general",
                parameters=_named(scope, {number: weight}),
                flops=_flops(scope, equation),
            )
    return Details("Matmul", "jax.lax.dot_general", flops=_flops(scope, equation))


def _window(equation: Equation, order: Layout) -> Details:
    params = equation.params
    channels = 1 if order == "channels_first" else len(params["window_dimensions"]) - 1
    axes = [axis for axis in range(1, len(params["window_dimensions"])) if axis != channels]
    window = params["window_dimensions"]
    if window[channels] > 1 and all(window[axis] == 1 for axis in axes):
        return Details("LRN", "jax.lax.reduce_window_sum", neighbours=int(window[channels]))
    kind = "MaxPool" if equation.primitive == "reduce_window_max" else "AvgPool"
    return Details(
        type=f"{kind}{len(axes)}d",
        framework_type=f"jax.lax.{equation.primitive}",
        kernel=tuple(int(window[axis]) for axis in axes),
        stride=tuple(int(params["window_strides"][axis]) for axis in axes),
        padding=tuple((int(a), int(b)) for a, b in (params["padding"][axis] for axis in axes)),
        dilation=tuple(int(params["window_dilation"][axis]) for axis in axes),
    )


def _flops(scope: Scope, equation: Equation) -> int:
    left, right = (scope.shape(number) for number in equation.inputs[:2])
    if equation.primitive == "dot_general":
        contracted, batched = equation.params["dimension_numbers"]
        batch = prod(left[axis] for axis in batched[0])
        k = prod(left[axis] for axis in contracted[0])
        m, n = prod(left) // max(batch * k, 1), prod(right) // max(batch * k, 1)
        return matmul(m, n, k, None, batch=batch).flops
    numbers = equation.params["dimension_numbers"]
    out = scope.shape(equation.outputs[0])
    extents = convolution.Convolution(
        batch=left[numbers.lhs_spec[0]],
        in_channels=left[numbers.lhs_spec[1]],
        out_channels=right[numbers.rhs_spec[0]],
        window=tuple(right[axis] for axis in numbers.rhs_spec[2:]),
        output=tuple(out[axis] for axis in numbers.out_spec[2:]),
        input=tuple(left[axis] for axis in numbers.lhs_spec[2:]),
        groups=int(equation.params["feature_group_count"]),
        transposed=_transposed(equation),
    )
    return convolution.count(extents, "forward", None).flops


def _named(scope: Scope, shaped: Mapping[int | None, Shape]) -> dict[str, Shape]:
    """Return the parameters of a scope; those in ``shaped`` have PyTorch's order of axes."""
    found: dict[str, Shape] = {}
    seen: set[int] = set()
    for equation in scope.equations:
        for number in equation.inputs:
            root = None if number is None else scope.roots.get(number)
            if root is None or root in seen:
                continue
            seen.add(root)
            own = scope.trained.get(root)
            kind = "weight" if number in shaped or (not shaped and not found) else "bias"
            name = renamed(PARAMETERS, own) if own else kind
            while name in found:
                name += "_"
            whole = number in shaped and prod(shaped[number]) == prod(scope.shape(root))
            found[name] = shaped[number] if whole else scope.shape(root)
    return found
