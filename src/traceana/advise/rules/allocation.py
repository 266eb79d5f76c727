"""Devices that wait while the driver allocates memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceana.advise.model import Change, Found, Rule
from traceana.advise.waiting import waits

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    return None if figures.on_cpu else waits(figures, "allocation")


RULE: Final = Rule(
    id="allocation",
    title="memory of the driver allocated or freed inside the steps",
    finds=_finds,
    kind="at most",
    says=(
        "The device is idle for {idle_ns} while the host allocates or frees memory of the driver"
        "[, mostly in {culprit}]."
    ),
    estimate="all the idle time whose cause is allocation.",
    doubt=(
        "In the first steps an allocator fills its pool; later ones need not. A recording without "
        "steps has the start of the program in it."
    ),
    change=Change(
        pytorch="keep shapes fixed, and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no "
        "torch.cuda.empty_cache() inside the step",
        tensorflow="fixed shapes; TF_GPU_ALLOCATOR=cuda_malloc_async",
        jax="leave XLA_PYTHON_CLIENT_PREALLOCATE on; donate buffers (donate_argnums)",
    ),
)
