"""What an instruction of XLA says of itself beyond its shapes, as one JSON object.

Window {dimensions 1}; WindowDimension {size 1, stride 2, padding_low 3, padding_high 4,
window_dilation 5, base_dilation 6, window_reversal 7}; ConvolutionDimensionNumbers
{kernel_input_feature 3, kernel_output_feature 4, kernel_spatial 6, input_batch 7, input_feature 8,
output_batch 9, output_feature 10, input_spatial 11, output_spatial 12}; DotDimensionNumbers
{lhs_contracting 1, rhs_contracting 2, lhs_batch 3, rhs_batch 4}, as in ``xla_data.proto`` of
openxla/xla. What a library was asked for stands in ``backend_config``, a JSON object whose
integers may be text and whose zeros are left out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.hlo_proto import Instruction, integers
from traceana.ingest.xplane.wire import VARINT, Field, fields

_WINDOW: Final = {
    1: "size",
    2: "stride",
    3: "padding_low",
    4: "padding_high",
    5: "window_dilation",
    6: "base_dilation",
    7: "reversal",
}
_CONVOLUTION: Final = {
    3: "kernel_input_feature",
    4: "kernel_output_feature",
    7: "input_batch",
    8: "input_feature",
    9: "output_batch",
    10: "output_feature",
}
_CONVOLUTION_LISTS: Final = {6: "kernel_spatial", 11: "input_spatial", 12: "output_spatial"}
_DOT: Final = {1: "lhs_contracting", 2: "rhs_contracting", 3: "lhs_batch", 4: "rhs_batch"}
_CONFIG_LIMIT: Final = 1 << 16
"""Bytes of the longest configuration that is looked into."""

Config = dict[str, Any]


def attributes(buffer: Buffer, of: Instruction) -> dict[str, Any]:
    """Return the attributes of an instruction, empty where it has none that are read.

    Raises ``WireError`` where one is no message.
    """
    found: dict[str, Any] = {"kind": of.kind} if of.kind else {}
    if of.window is not None:
        found["window"] = _window(buffer, of.window)
    if of.convolution is not None:
        found["dimension_numbers"] = _convolution(buffer, of.convolution)
        found["feature_group_count"] = of.feature_groups
        found["batch_group_count"] = of.batch_groups
    if of.dot is not None:
        found |= _dot(buffer, of.dot)
    if of.config is not None and (of.opcode == "while" or of.target):
        found |= _configured(_config(buffer, of.config))
    return found


def _window(buffer: Buffer, whole: Field) -> dict[str, list[int]]:
    window: dict[str, list[int]] = {name: [] for name in _WINDOW.values()}
    for dimension in fields(buffer, whole.start, whole.end):
        values = dict.fromkeys(_WINDOW, 0) | {5: 1, 6: 1}
        for part in fields(buffer, dimension.start, dimension.end):
            if part.number in _WINDOW and part.wire == VARINT:
                values[part.number] = part.signed
        for number, name in _WINDOW.items():
            window[name].append(values[number])
    return window


def _convolution(buffer: Buffer, whole: Field) -> dict[str, int | list[int]]:
    single = dict.fromkeys(_CONVOLUTION.values(), 0)
    several: dict[str, list[int]] = {name: [] for name in _CONVOLUTION_LISTS.values()}
    for part in fields(buffer, whole.start, whole.end):
        if part.number in _CONVOLUTION and part.wire == VARINT:
            single[_CONVOLUTION[part.number]] = part.signed
        elif part.number in _CONVOLUTION_LISTS:
            several[_CONVOLUTION_LISTS[part.number]] += integers(buffer, part)
    return {**single, **several}


def _dot(buffer: Buffer, whole: Field) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in _DOT.values()}
    for part in fields(buffer, whole.start, whole.end):
        if part.number in _DOT:
            found[_DOT[part.number]] += integers(buffer, part)
    return found


def _config(buffer: Buffer, place: Field) -> Config:
    if place.end - place.start > _CONFIG_LIMIT:
        return {}
    try:
        found = msgspec.json.decode(buffer.data[place.start : place.end].tobytes())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _configured(config: Config) -> dict[str, Any]:
    if trips := _whole(_at(config, "known_trip_count", "n")):
        return {"trip_count": trips}
    if isinstance(gemm := _at(config, "gemm_backend_config", "dot_dimension_numbers"), dict):
        return {
            name: _wholes(gemm.get(f"{name}_dimensions"))
            for name in ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
        }
    if isinstance(kernel := _at(config, "onednn_conv_config", "kernel", "filter"), dict):
        return {
            "dimension_numbers": {
                # oneDNN's configuration counts these from 0 and the spatial ones from 1.
                "kernel_input_feature": _whole(kernel.get("input_feature_dim")),
                "kernel_output_feature": _whole(kernel.get("output_feature_dim")),
                "kernel_spatial": [size - 1 for size in _wholes(kernel.get("spatial_dims"))],
            },
            "feature_group_count": _whole(_at(config, "onednn_conv_config", "feature_groups")) or 1,
        }
    if isinstance(product := config.get("onednn_matmul_config"), dict):
        return {name: product.get(name) is True for name in ("transpose_a", "transpose_b")}
    return {}


def _at(config: Config, *path: str) -> Any:
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _whole(value: Any) -> int:
    """Return an integer, which protobuf's JSON may write as text; 0 where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _wholes(value: Any) -> list[int]:
    return [_whole(each) for each in value] if isinstance(value, list) else []
