"""Chrome traces: the stream of events that all JSON formats share, and all readers but Kineto's."""

from __future__ import annotations

import re
from typing import Final

from traceana.readers.format import Confidence, Format, Head, known

NO_EVENTS: Final = "is JSON without traceEvents: pass the file that a profiler exported"
# TensorFlow's and JAX's trace.json: its processes are planes, /host:CPU.
_PLANE: Final = re.compile(rb'"name"\s*:\s*"/(?:host|device):')
# MXNet's profile begins with the names of its devices; no other profiler has these two.
_MXNET_DEVICE: Final = re.compile(rb'"name"\s*:\s*"cpu (?:pinned|shared)/"')
_ONNX: Final = re.compile(rb'"name"\s*:\s*"(?:model_loading_|session_initialization")')
"""The first events of ONNX Runtime, whose kernels have Kineto's category."""
_KINETO: Final = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|External id|distributedInfo)"|'
    rb'"(?:ts|dur)"\s*:\s*"\s*-?[\d.]|'
    rb'"cat"\s*:\s*"(?:kernel|gpu_\w+|cuda_\w+|cpu_(?:op|instant_event)|operator|python_function|'
    rb"user_annotation|runtime|memcpy|memset|ac2g|async\w*|fwdbwd|forward_backward|overhead|trace|"
    rb'Trace|Kernel|Memcpy|Memset|Operator|Runtime)"',
    re.IGNORECASE,
)


def _is_chrome(head: Head) -> Confidence:
    other = _ONNX.search(head.content) or not _KINETO.search(head.content)
    return known(head.is_json and head.has_events and other, Confidence.EVENTS)


FORMATS: Final = (
    Format(
        "xplane-json",
        lambda head: known(head.is_json and _PLANE.search(head.content)),
        "chrome.reader:read",
    ),
    Format(
        "mxnet",
        lambda head: known(head.is_json and _MXNET_DEVICE.search(head.content)),
        "chrome.mxnet:read",
    ),
    Format("chrome-json", _is_chrome, "chrome.reader:read"),
)
