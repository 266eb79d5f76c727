"""What people handed in: the screens have the right figures and words, not the wrong ones.

The inputs are beside the repository; tests of their kinds, with inputs of their own, are by reader
and command.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.command_line import Run
from tests.support.manifest import TRACES

FIELD: Final = TRACES.parent / "cases" / "field"
CASES: Final = {
    "buffer_request.json": ("0.267 ms median", "in 1 step", "!86.2 %"),
    "dataloader_table.txt": ("88.71 s · DataLoader 78.63 s (88.6 %)",),
    "dtoh_only.json": ("transfer-bound", "1. pageable copies", "pin_memory=True"),
    "eager_elementwise.json": ("1. unfused elementwise", "!no findings"),
    "host_bound_no_steps.json": ("1. host bound",),
    "host_bound_steps.json": ("1. host bound",),
    "jax_te.xplane.pb.gz": ("AMD gfx95x, 256 CUs", "jax.named_scope", "!emit_nvtx"),
    "nccl_annotation_table.txt": (
        "20.00 µs of 40.00 µs printed total",
        "AllReduce 1 20.00",
    ),
    "nccl_plugin.json": ("16 pairs of begin and end events, not read",),
    "nsys_old_for_driver.sqlite": ("does not support driver 13.3", "!18 ranges"),
    "only_memset.json": ("Kernels          none recorded", "!100.0 % of"),
    "other_accelerator.json": (
        "24 events of category mtia_ccp_events (9.60 ms)",
        "!host-bound",
        "!Recommendations",
    ),
    "render_stages.pftrace": ("Kernels          10 ", "9.00 of 18.90 µs"),
    "stack_table.txt": ("1.00 ms of 1.00 ms printed total", "!Integrity"),
    "torch_next_alexnet_b128.json.gz": ("copies: HtoD", "1. pageable copies", "!unknown"),
    "track_events.pftrace": ("Kernels          10 ", "10.00 of 19.00 µs"),
    "two_runs.md": ("100.0 ms ± 1.00 µs", "2 runs in the file", "run 2: 40.000 ms"),
}
"""Words of the first screen of each; after an exclamation mark, words that are not there."""


@pytest.mark.skipif(not FIELD.exists(), reason="no shared cases")
@pytest.mark.parametrize("name", CASES)
def test_screen(name: str, run: Run) -> None:
    screen = " ".join(run("report", FIELD / name).stdout.split())
    for words in CASES[name]:
        expected = " ".join(words.removeprefix("!").split())
        assert (expected in screen) is not words.startswith("!"), (expected, screen)


@pytest.mark.skipif(not FIELD.exists(), reason="no shared cases")
def test_every_case_has_a_row() -> None:
    assert {path.name for path in FIELD.iterdir()} - {"README.md"} <= CASES.keys()
