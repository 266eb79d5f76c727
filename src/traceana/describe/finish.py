"""From what an adapter found of a layer to the manifest's row of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from traceana.describe.geometry import Pads, channels_first, layout_of, pads_as_run
from traceana.describe.inputs import Call
from traceana.describe.manifest import Input, Layer, Layout, Shape
from traceana.describe.recording import Recorded
from traceana.describe.work import LayerCall, flops


@dataclass(frozen=True, slots=True)
class Details:
    """What a layer is, in the manifest's terms.

    ``parameters`` are shaped as PyTorch has them: (K, C / groups, R, S) and (out, in).
    ``neighbours`` is the number of channels over which LRN sums. ``flops`` is told of what is no
    layer of one formula: those of one call. With ``by_operators`` the operators that ran are
    counted in place of a formula.
    """

    type: str
    framework_type: str
    kernel: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    padding: Pads | None = None
    dilation: tuple[int, ...] | None = None
    groups: int | None = None
    parameters: Mapping[str, Shape] = field(default_factory=dict)
    neighbours: int | None = None
    flops: int | None = None
    by_operators: bool = False


def finished(recorded: Recorded, position: int, found: Details) -> Layer:
    """Return the row of a layer: shapes in the one convention, zeros as they ran, FLOPs."""
    calls = [
        LayerCall(
            tuple(channels_first(shape, found.type, recorded.axes) for shape in inputs),
            tuple(channels_first(shape, found.type, recorded.axes) for shape in outputs),
        )
        for inputs, outputs in recorded.calls
    ]
    first = calls[0]
    type_ = "Flatten" if _flattens(first, found) else found.type
    counts = [_flops(type_, call, found) for call in calls]
    known = [count for count in counts if count is not None]
    total = sum(known) * recorded.times if len(known) == len(counts) else recorded.flops
    return Layer(
        path=recorded.path,
        type=type_,
        framework_type=found.framework_type,
        position=position,
        calls=len(calls) * recorded.times,
        inputs=first.inputs,
        outputs=first.outputs,
        layout=layout_of((*first.inputs, *first.outputs), type_, recorded.layout),
        kernel=found.kernel,
        stride=found.stride,
        padding=_pads(found, first),
        dilation=found.dilation,
        groups=found.groups,
        parameters=dict(found.parameters),
        parameter_count=sum(prod(shape) for shape in found.parameters.values()),
        flops=recorded.flops if found.by_operators else total,
        order=tuple(recorded.order) if len(recorded.order) > 1 else (),
    )


def _flops(type_: str, call: LayerCall, found: Details) -> int | None:
    if found.flops is not None:
        return found.flops
    return flops(type_, call, found.parameters, found.kernel, found.groups, found.neighbours)


def _flattens(call: LayerCall, found: Details) -> bool:
    """Tell whether a layer of one's own class does what Flatten does."""
    if found.parameters or len(call.inputs) != 1 or len(call.outputs) != 1:
        return False
    (given,), (made,) = call.inputs, call.outputs
    return len(given) > 2 and made == (given[0], prod(given[1:]))


def _pads(found: Details, call: LayerCall) -> Pads | None:
    if found.kernel is None or found.stride is None or found.padding is None:
        return found.padding
    given, made = call.inputs[0], call.outputs[0]
    images = len(given) == len(made) == len(found.kernel) + 2
    if not images or found.type.startswith("ConvTranspose"):
        return found.padding
    dilation = found.dilation or (1,) * len(found.kernel)
    return pads_as_run(given, made, found.kernel, found.stride, found.padding, dilation)


def model_inputs(
    call: Call, dtypes: Sequence[str], layers: Sequence[Layer], axes: Layout
) -> tuple[Input, ...]:
    """Return the model's inputs in the manifest's convention.

    They are images where the first layer has images of this rank; ``axes`` is their order of axes.
    """
    layout = next((layer.layout for layer in layers if layer.layout is not None), None)
    kind = layers[0].type if layers else ""
    return tuple(
        Input(
            shape=channels_first(shape, kind, axes),
            dtype=dtype,
            layout=None if layout is None else layout_of([shape], kind, layout),
            name=name,
        )
        for shape, dtype, name in zip(call.shapes, dtypes, call.names, strict=True)
    )
