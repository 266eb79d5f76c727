"""The manifest's row of a layer, from its recorded calls: shapes, padding, FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec
from msgspec.structs import replace

from traceana.flops.call import Refusal
from traceana.flops.layer_formulas import Layer as Shapes
from traceana.flops.layer_formulas import layer_costs
from traceana.flops.registry import total_flops
from traceana.model.recorded_calls import (
    ModelCall,
    Pads,
    Recorded,
    channels_first,
    effective_padding,
    layout_of,
)
from traceana.runs.layer_manifest import Input, Layer, Layout, Shape


class Details(msgspec.Struct, frozen=True):
    """A layer's type and arguments, in the manifest's terms.

    ``parameters`` have PyTorch's shapes: (K, C / groups, R, S) and (out, in). ``neighbours`` is
    the number of channels over which LRN sums. ``flops`` are those of one call if no formula
    applies. With ``by_operators`` FLOPs are counted by operator, not by formula.
    """

    type: str
    framework_type: str
    kernel: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    padding: Pads | None = None
    dilation: tuple[int, ...] | None = None
    groups: int | None = None
    parameters: Mapping[str, Shape] = msgspec.field(default_factory=dict)
    neighbours: int | None = None
    flops: int | None = None
    by_operators: bool = False


def finished(recorded: Recorded, position: int, details: Details) -> Layer:
    """Return the manifest's row of a layer: shapes in one convention, effective padding, FLOPs."""
    calls = [
        Shapes(
            details.type,
            tuple(channels_first(shape, details.type, recorded.axes) for shape in inputs),
            tuple(channels_first(shape, details.type, recorded.axes) for shape in outputs),
            details.parameters,
            details.kernel,
            details.groups,
            details.neighbours,
        )
        for inputs, outputs in recorded.calls
    ]
    first = calls[0]
    type_ = details.type
    if not first.parameters and len(first.inputs) == len(first.outputs) == 1:
        (in_shape,), (out_shape,) = first.inputs, first.outputs
        if len(in_shape) > 2 and out_shape == (in_shape[0], prod(in_shape[1:])):
            type_ = "Flatten"  # a custom class may flatten too
    counts = [flops(replace(call, type=type_)) for call in calls]
    total = recorded.flops
    if details.flops is not None:
        total = details.flops * len(calls) * recorded.times
    elif None not in counts:
        total = sum(count or 0 for count in counts) * recorded.times
    return Layer(
        path=recorded.path,
        type=type_,
        framework_type=details.framework_type,
        position=position,
        calls=len(calls) * recorded.times,
        inputs=first.inputs,
        outputs=first.outputs,
        layout=layout_of((*first.inputs, *first.outputs), type_, recorded.layout),
        kernel=details.kernel,
        stride=details.stride,
        padding=_pads(details, first),
        dilation=details.dilation,
        groups=details.groups,
        parameters=dict(details.parameters),
        parameter_count=sum(prod(shape) for shape in details.parameters.values()),
        flops=recorded.flops if details.by_operators else total,
        order=tuple(recorded.order) if len(recorded.order) > 1 else (),
        input_gradient=recorded.input_gradient,
    )


def flops(call: Shapes) -> int | None:
    """Return the FLOPs of one forward call, None if unknown.

    Batch normalization counts with the statistics of the batch, as in training; a recurrent layer
    counts its GEMMs only, attention its projections and batched GEMMs.
    """
    costs = layer_costs(call)
    return None if isinstance(costs, Refusal) else total_flops(costs)


def _pads(details: Details, call: Shapes) -> Pads | None:
    if details.kernel is None or details.stride is None or details.padding is None:
        return details.padding
    in_shape, out_shape = call.inputs[0], call.outputs[0]
    images = len(in_shape) == len(out_shape) == len(details.kernel) + 2
    if not images or details.type.startswith("ConvTranspose"):
        return details.padding
    dilation = details.dilation or (1,) * len(details.kernel)
    return effective_padding(
        in_shape, out_shape, details.kernel, details.stride, details.padding, dilation
    )


def model_inputs(
    call: ModelCall, dtypes: Sequence[str], layers: Sequence[Layer], axes: Layout
) -> tuple[Input, ...]:
    """Return the model's inputs in the manifest's convention.

    They are images if the first layer has images of this rank; ``axes`` is their order of axes.
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
