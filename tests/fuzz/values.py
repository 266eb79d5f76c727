"""Values that no profiler writes."""

from __future__ import annotations

import random
from typing import Final

INTEGERS: Final = (
    *(0, 1, -1, 7, 127, 128, 255, 256, 65_535, 65_536, 1_000_000, 1_000_000_000),
    *(2**31 - 1, 2**31, -(2**31) - 1, 2**32 - 1, 2**32, 2**53 + 1, 2**60, 2**62 - 1, 2**62),
    *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, -(10**30)),
)
IN_INT64: Final = tuple(value for value in INTEGERS if -(2**63) <= value < 2**63)
FLOATS: Final = (0.5, -0.5, 1e-320, 1e18, 1e300, -1e300, 0.1 + 0.2, 4.6e15, 9.2e18)
NAMES: Final = (
    "ProfilerStep#1000000000", "ProfilerStep#99999999999999999999", "ProfilerStep#-1",
    "ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#٣", "iteration 1000000000", "step 5",
    "nn.Module: Conv2d_1000000000", "nn.Module: ", "Optimizer.step#", "Optimizer.zero_grad#SGD",
    "aten::cudnn_convolution", "aten::addmm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL()",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "Memcpy HtoD (Pageable -> Device)", "Memset (Device)", "cudaLaunchKernel", "cudaMemcpyAsync",
    "void f<" * 300, "_Z" + "N1a" * 2000, "a(" * 5000, "x/" * 3000, "a::" * 3000,
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "[memory]",
)  # fmt: skip
TEXTS: Final = (
    "", " ", "\x00", "\x1b[31m\x07", "\u202e\u2066abc\u2069", "\u2028\u2029", "[bold]x[/bold]",
    "é\u0301" * 20, "\U0001f600" * 10, "\ufeff", "\ufffd", "%s%n{0}{x}", "../../etc/passwd",
    "\r\n\t,;\"'`|", "null", "NaN", "1e999", "-0", "0x10", "\u0660\u0661", "A" * 70_000,
    *NAMES,
)  # fmt: skip


def integer(rng: random.Random) -> int:
    """Return an integer at a border of some type, or near one."""
    value = rng.choice(INTEGERS)
    return value + rng.choice((0, 0, 0, 1, -1, rng.randrange(1000)))


def text(rng: random.Random) -> str:
    """Return a hostile text; rarely one of a megabyte."""
    if rng.random() < 0.01:
        return rng.choice(("x", "é", "a/b", "1 ")) * 1_000_000
    return rng.choice(TEXTS)
