"""What classes, algorithms and directions are called on the screen."""

from __future__ import annotations

from typing import Final

from traceana.report.text import plain

CATEGORIES: Final[dict[str, str]] = {
    "conv": "convolution",
    "gemm": "GEMM",
    "memcpy": "copies",
    "memset": "memory sets",
    "layout": "layout changes",
    "collective": "collectives",
    "fused": "fused by a compiler",
    "other": "not classified",
}

PARTS: Final[dict[str, str]] = {
    "implicit_gemm": "implicit GEMM",
    "implicit_precomp_gemm": "implicit precomp GEMM",
    "gemm": "GEMM",
    "fft": "FFT",
    "fft_tiling": "FFT tiling",
    "winograd": "Winograd",
    "winograd_nonfused": "Winograd nonfused",
    "algo_0": "backward ALGO_0",
    "algo_1": "backward ALGO_1",
    "algo_3": "backward ALGO_3",
    "relu": "ReLU",
    "gelu": "GELU",
    "silu": "SiLU",
    "nchw_to_nhwc": "NCHW to NHWC",
    "nhwc_to_nchw": "NHWC to NCHW",
}


def category(name: str) -> str:
    """Return the name of a category for people."""
    return CATEGORIES.get(name, name)


def part(name: str) -> str:
    """Return the name of a part of a category for people."""
    if name in PARTS:
        return PARTS[name]
    shown = [word.upper() if word.endswith("gemm") else word for word in name.split()]
    return plain(" ".join(shown).replace("_", " "))
