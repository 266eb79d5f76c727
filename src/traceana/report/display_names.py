"""Display names of kernels, classes and directions; machine formats have full names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

from traceana.plain_text import plain
from traceana.report import numbers

CATEGORIES: Final[dict[str, str]] = {
    "conv": "convolution",
    "gemm": "GEMM",
    "memcpy": "copies",
    "memset": "memsets",
    "copy": "copies",
    "sync": "synchronization",
    "layout": "layout conversion",
    "collective": "collectives",
    "fused": "compiler-fused",
    "pass": "passes",
    "other": "unclassified",
    "host": "CPU",
}

PARTS: Final[dict[str, str]] = {
    "conv": "convolution",
    "layout": "layout conversion",
    "implicit_gemm": "implicit GEMM",
    "implicit_precomp_gemm": "implicit precomp GEMM",
    "gemm": "GEMM",
    "fft": "FFT",
    "fft_tiling": "FFT tiling",
    "winograd": "Winograd",
    "winograd_nonfused": "Winograd nonfused",
    "algo_0": "ALGO_0",
    "algo_1": "ALGO_1",
    "algo_3": "ALGO_3",
    "fprop": "forward",
    "not_recorded": "launched before capture",
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AlltoAll",
    "send_recv": "SendRecv",
    "broadcast": "Broadcast",
    "rope": "RoPE",
    "kv_cache": "KV cache",
    "relu": "ReLU",
    "gelu": "GELU",
    "silu": "SiLU",
    "nchw_to_nhwc": "NCHW to NHWC",
    "nhwc_to_nchw": "NHWC to NCHW",
}

LIBRARIES: Final[dict[str, str]] = {
    "aten": "ATen",
    "caffe": "Caffe",
    "ck": "Composable Kernel",
    "cntk": "CNTK",
    "cub": "CUB",
    "cublas": "cuBLAS",
    "cublaslt": "cuBLASLt",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "cufft": "cuFFT",
    "curand": "cuRAND",
    "cusolver": "cuSOLVER",
    "cusparse": "cuSPARSE",
    "cutensor": "cuTENSOR",
    "cutlass": "CUTLASS",
    "eigen": "Eigen",
    "fbgemm": "FBGEMM",
    "flash_attn": "FlashAttention",
    "hip": "HIP",
    "horovod": "Horovod",
    "magma": "MAGMA",
    "miopen": "MIOpen",
    "mxnet": "MXNet",
    "nccl": "NCCL",
    "nvfuser": "nvFuser",
    "onednn": "oneDNN",
    "onnxruntime": "ONNX Runtime",
    "paddle": "Paddle",
    "rccl": "RCCL",
    "rocblas": "rocBLAS",
    "rocfft": "rocFFT",
    "rocprim": "rocPRIM",
    "tensile": "Tensile",
    "tensorflow": "TensorFlow",
    "tensorrt": "TensorRT",
    "theano": "Theano",
    "thrust": "Thrust",
    "torch7": "Torch7",
    "transformer_engine": "Transformer Engine",
    "triton": "Triton",
    "xformers": "xFormers",
    "xla": "XLA",
}
BATCHED: Final[dict[str, str]] = {
    "plain": "no",
    "batched": "yes",
    "strided batched": "strided",
    "plain or batched": "unknown",
}
"""Whether a GEMM is batched, by its form."""

FORMATS: Final[dict[str, str]] = {
    "chrome": "Chrome trace",
    "job-table": "table of operations",
    "job-timeline": "timeline of operations",
    "kineto": "Kineto",
    "mxnet": "MXNet",
    "ncu": "Nsight Compute",
    "nsys": "Nsight Systems",
    "perfetto": "Perfetto",
    "torch_snapshot": "PyTorch memory snapshot",
    "xplane": "XPlane",
    "xplane-json": "XPlane (JSON)",
}

_UPPER: Final = re.compile(r"\w*gemm|(?:fp|tf|bf|int)\d+")
"""Words that are written in capitals: GEMMs and precisions."""

_NOISE: Final = (
    "(anonymous namespace)::",
    "<unnamed>::",
    "at::native::",
    "c10::",
    "at::cuda::",
)

_LAMBDA: Final = re.compile(
    r"[\[{]lambda ?\([^()]*\)(?: ?\(instance (\d+)\)\]|#(\d+)\}(?: const)?)"
)
"""A lambda as the demanglers of NVIDIA, or of GCC and LLVM, write it."""
_CALLED: Final = re.compile(r"::operator ?\(\)\(\)(?: const)?")
_IMPLEMENTATION: Final = re.compile(r"(?:void )?gpu_kernel_impl(?:_nocast)?<")
_NUMBERED: Final = re.compile(r" ?::lambda#\d+")
_NESTED: Final = re.compile(r"(?<=lambda#)\d+(?:::lambda#\d+)+")
_OPERANDS: Final = re.compile(r", (?:at::detail::Array|std::array)<char ?\*, [^<>]*> ?(?=>)")
_CAST: Final = re.compile(r"(?<=[<, ])\((?:unsigned )?(?:int|long|short|char|bool)\)(?=-?\d)")
"""The type of a number among the parameters of a template, as NVIDIA's demangler writes it."""
_VOID: Final = re.compile(r"(?<=[<, ])void (?!const\b|volatile\b)(?=\w)")
"""The return type of a function among the parameters of a template."""
_CLOSING: Final = {")": "(", "]": "[", "}": "{", ">": "<"}
_PARENTHESES: Final = re.compile(r"(\(|\)(?: const)?(?:::)?)")

_CUTLASS: Final = re.compile(r"cutlass\w*::Kernel\d?<(?:void )?(cutlass\w*?)(?:::Params)?>")
_TENSILE: Final = re.compile(r"(?:Custom_)?Cijk_(A\w{3})_(B\w{3})_(\w*?)_?(MT\d+x\d+x\d+)(\w*)")
_DIFFER: Final = re.compile(r"_(MI\d+x\d+x\d+|PGR\d+|PLR\d+|SK\d+|GSU\d+|WG\d+_\d+_\d+)(?=_|$)")
"""Differences of Tensile's kernels of one type and tile: instruction, stages, splits."""
_LAYOUTS: Final = {"Ailk": "N", "Alik": "T", "Bljk": "N", "Bjlk": "T"}


def category(name: str) -> str:
    """Return the display name of a category of kernels."""
    return CATEGORIES.get(name) or plain(name.replace("_", " "))


def class_of(category_: str, part_: str | None) -> str:
    """Return the name of a part of a category with both: ``activation: ReLU``."""
    whole, detail = category(category_), part(part_ or "")
    return whole if part_ in (None, "", "unknown") or detail == whole else f"{whole}: {detail}"


def part(name: str) -> str:
    """Return the display name of a part of a category: an algorithm, a direction, a function.

    ``name`` may have several parts, separated by commas; unknown ones are omitted.
    """
    if ", " in name:
        return ", ".join(part(piece) for piece in name.split(", ") if piece not in ("", "unknown"))
    if name in PARTS:
        return PARTS[name]
    if "+" in name:
        return "+".join(map(part, name.split("+")))
    words = [word.upper() if _UPPER.fullmatch(word) else word for word in name.split()]
    return plain(" ".join(words).replace("_", " "))


def trace_file(path: str) -> str:
    """Return the name of a trace for a title, after its folder where it is just ``trace``.

    All recorded runs have a trace of this name, and most that are exported by hand.
    """
    file = PurePath(path)
    general = file.name.partition(".")[0] == "trace"
    return f"{file.parent.name}/{file.name}" if general and file.parent.name else file.name


def file_format(name: str, version: str | None) -> str:
    """Return the display name of a format, with the version of its schema: Kineto's is always 1."""
    shown = FORMATS.get(name, plain(name))
    return shown if version is None or name == "kineto" else f"{shown}, schema {plain(version)}"


def recorded_by(name: str, producer: str | None) -> str:
    """Return the display name of a format, with the version of the profiler where it is known."""
    shown = FORMATS.get(name, plain(name))
    version = _RELEASE.search(producer or "") if shown in (producer or "") else None
    return shown if version is None else f"{shown} {version[0]}"


_RELEASE: Final = re.compile(r"\b\d+(?:\.\d+){1,2}")
"""A release without the build: ``2024.2.3`` of ``2024.2.3.38``."""


def libraries(names: str) -> str:
    """Return the display names of libraries, separated by commas."""
    return ", ".join(LIBRARIES.get(name, name) for name in map(str.strip, plain(names).split(",")))


def brief(name: str) -> str:
    """Return the name of a kernel without return type, arguments and the namespaces of libraries.

    Lambdas have their number, the functions that contain them no parameters. Of PyTorch's
    elementwise kernels the function is shown, without the lambda around it.

    >>> brief("void at::native::(anonymous namespace)::softmax<4, float>(float*, int)")
    'softmax<4, float>'
    >>> brief("void elementwise_kernel<(int)128, (bool)1, Add>(int)")
    'elementwise_kernel<128, 1, Add>'
    >>> brief("void kernel<add(Iterator&, int)::{lambda()#2}>(int)")
    'kernel<add::lambda#2>'
    """
    if generated := _TENSILE.match(name):
        return plain(_tensile(generated))
    if inner := _CUTLASS.search(name):
        return plain(inner[1])
    shown = _VOID.sub("", _CAST.sub("", _without_arguments(_without_noise(name))))
    return plain(_shortened(shown) or name)


def briefs(kernels: Iterable[str]) -> dict[str, str]:
    """Return the brief name of each of ``kernels``, or the long name if two would be the same."""
    brief_names = {name: brief(name) for name in kernels}
    seen = Counter(brief_names.values())
    return {
        name: shown if seen[shown] == 1 else plain(_without_noise(name))
        for name, shown in brief_names.items()
    }


def _without_noise(name: str) -> str:
    """Return ``name`` without return type and the namespaces of libraries."""
    shown = _without_type(name).removeprefix("void ")
    for noise in _NOISE:
        shown = shown.replace(noise, "")
    return shown


def _without_type(name: str) -> str:
    """Return the name of a template function without its return type, which precedes it.

    >>> _without_type("std::enable_if<((8)>(0)), void>::type norm<float, 8>(float*)")
    'norm<float, 8>(float*)'
    """
    head = _without_arguments(name)
    if head is name or not head.endswith(">") or " " not in head:
        return name
    opened: list[str] = []
    for at in range(len(head) - 1, -1, -1):
        if head[at] in _CLOSING:
            # In parentheses < and > are operators.
            if head[at] != ">" or not opened or opened[-1] == "<":
                opened.append(_CLOSING[head[at]])
        elif opened and head[at] == opened[-1]:
            opened.pop()
        elif head[at] == " " and not opened:
            return name[at + 1 :]
    return name


def _shortened(name: str) -> str:
    """Return ``name`` with lambdas by number, and without the parameters of their functions.

    ``lambda#2.7`` is the seventh lambda in the second.
    The array of operands, the last parameter of PyTorch's elementwise kernels, is left out.
    """
    name = _OPERANDS.sub("", name).replace("> >", ">>")
    if "lambda" not in name:
        return name
    shown = _LAMBDA.sub(lambda match: f"lambda#{match[1] or match[2]}", name)
    shown = _CALLED.sub("", shown)
    shown = _NESTED.sub(lambda match: match[0].replace("::lambda#", "."), shown)
    kept: list[str] = []
    opened: list[int] = []
    for part_ in _PARENTHESES.split(shown):
        if part_ == "(":
            opened.append(len(kept))
        if part_.startswith(")") and opened:
            start = opened.pop()
            if part_.endswith("::"):
                del kept[start:]
                part_ = "::"
        kept.append(part_)
    return _of_pytorch("".join(kept))


def _of_pytorch(name: str) -> str:
    """Return ``name`` with the function of PyTorch's ``gpu_kernel_impl`` instead of its lambda."""
    start = _IMPLEMENTATION.search(name)
    if start is None:
        return name
    depth = 1
    for at in range(start.end(), len(name)):
        depth += {"<": 1, ">": -1}.get(name[at], 0)
        if depth == 0:
            after = _NUMBERED.match(name, at + 1)
            inner = name[start.end() : at].rstrip()
            return f"{name[: start.start()]}{inner}{name[after.end() :]}" if after else name
    return name


def _tensile(name: re.Match[str]) -> str:
    """Return tile, layout and variant of a Tensile kernel: ``Cijk MT64x64x32 NT``."""
    layout = "".join(_LAYOUTS.get(letter, "?") for letter in (name[1], name[2]))
    return " ".join(("Cijk", name[4], layout, *_DIFFER.findall(name[5])))


def _without_arguments(name: str) -> str:
    """Return ``name`` without the argument list at its end."""
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if depth == 0:
            return name[:position]
    return name


def device_properties(device: Mapping[str, Any]) -> list[str]:
    """Return the properties of a row of ``devices``: ``CC 7.0``, ``80 SMs``, ``16.9 GB``.

    AMD's targets are named by their version, of which traces lack the stepping: 9.5 is gfx95x.
    """
    is_amd = device["vendor"] == "AMD"
    properties = []
    if version := device["compute_capability"]:
        target = f"AMD gfx{version.replace('.', '')}x"
        properties.append(target if is_amd else f"CC {version}")
    if device["multiprocessors"]:
        properties.append(f"{device['multiprocessors']} {'CUs' if is_amd else 'SMs'}")
    if device["memory_bytes"]:
        properties.append(numbers.size(device["memory_bytes"]))
    return properties
