"""The kernel taxonomy: the columns of a class and the closed sets of their values.

``docs/classification.md`` has the meaning of each value. A rule with a value outside these sets
does not load, so a new category or algorithm is added here first.
"""

from __future__ import annotations

from typing import Final

import polars as pl

CATEGORIES: Final[tuple[str, ...]] = (
    "conv",
    "gemm",
    "bias",
    "activation",
    "pooling",
    "normalization",
    "softmax",
    "loss",
    "dropout",
    "attention",
    "rnn",
    "embedding",
    "elementwise",
    "reduction",
    "indexing",
    "layout",
    "fft",
    "optimizer",
    "random",
    "collective",
    "fused",
    "pass",  # all of the forward or backward pass of a micro-batch, of a job's operations
    "image",
    "memcpy",
    "memset",
    "other",
)

SEARCH: Final = "algorithm search"
"""The category, and the role, of the trials that an autotuner runs to choose an algorithm."""

AUTOTUNE: Final = "autotune"
"""The function of kernels of an algorithm search; their category by name is another."""

PRODUCTS: Final = ("conv", "gemm", "attention", "rnn")
"""Categories with most FLOPs."""

NO_ARITHMETIC: Final = ("memcpy", "memset", "collective", "layout")
"""Categories that move data."""

FAMILY_OF_ALGORITHM: Final[dict[str, str]] = {
    "implicit_gemm": "gemm",
    "implicit_precomp_gemm": "gemm",
    "gemm": "gemm",
    "algo_0": "gemm",
    "algo_1": "gemm",
    "algo_3": "gemm",
    "direct": "direct",
    "depthwise": "direct",
    "fft": "fft",
    "fft_tiling": "fft",
    "winograd": "winograd",
    "winograd_nonfused": "winograd",
    "unknown": "unknown",
}
"""Convolution algorithms, in cuDNN's names, and the four families of Kim et al. (ISPASS 2017)."""

ALGORITHMS: Final[tuple[str, ...]] = tuple(FAMILY_OF_ALGORITHM)
DIRECTIONS: Final[tuple[str, ...]] = ("fprop", "dgrad", "wgrad", "forward", "backward")
PRECISIONS: Final[tuple[str, ...]] = (
    "fp64",
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "fp4",
    "int8",
    "w4a16",  # 4-bit weights, dequantized and multiplied with 16-bit activations
    "w8a16",
    "c64",
    "c128",
)
GEMM_LAYOUTS: Final[tuple[str, ...]] = ("nn", "nt", "tn", "tt")

CLASS_COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "category": pl.String,
    "algorithm": pl.String,
    "family": pl.String,
    "direction": pl.String,
    "batched": pl.Boolean,
    "precision": pl.String,
    "tensor_core": pl.Boolean,
    "gemm_layout": pl.String,
    "tile": pl.String,
    "function": pl.String,
    "epilogue": pl.String,
    "library": pl.String,
}
"""The columns of a class. ``category`` is never null."""

CLASS_MEANINGS: Final[dict[str, str]] = {
    "category": "what it computes: conv, gemm, normalization … (docs/classification.md)",
    "algorithm": "convolution algorithm, in cuDNN's names",
    "family": "family of the algorithm: gemm, direct, fft, winograd, unknown",
    "direction": "pass of a convolution (fprop, dgrad, wgrad) or of another layer",
    "batched": "batched GEMM",
    "precision": "type of the operands",
    "tensor_core": "runs on tensor cores (matrix cores)",
    "gemm_layout": "layout of the operands: nn, nt, tn, tt",
    "tile": "tile of a block: 128x64",
    "function": "function within the category: relu, max_pool, nchw_to_nhwc …",
    "epilogue": "fused epilogue: bias, relu …",
    "library": "library that the kernel is from",
}

CLASS_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "name": pl.String,
    **CLASS_COLUMNS,
    "rule": pl.String,
}
"""One row per name; ``rule`` is the id of the matching rule and never null."""

CLOSED_SETS: Final[dict[str, tuple[str, ...]]] = {
    "category": CATEGORIES,
    "algorithm": ALGORITHMS,
    "direction": DIRECTIONS,
    "precision": PRECISIONS,
    "gemm_layout": GEMM_LAYOUTS,
}
"""Columns that a rule may set only to one of these values."""

BOOLEAN_COLUMNS: Final[tuple[str, ...]] = ("batched", "tensor_core")

SETTABLE_COLUMNS: Final[tuple[str, ...]] = tuple(c for c in CLASS_COLUMNS if c != "family")
"""Columns that a rule may set; ``family`` follows from ``algorithm``."""
