"""Copies over the host's link that no kernel hides, however fast they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.copying import NOT_SMALL, copied, host_copies
from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    # Pageable memory keeps a copy from running beside kernels: it has a rule of its own.
    rows = host_copies(figures, (pl.col("host_memory") != "pageable") & NOT_SMALL)
    return copied(
        figures,
        rows.sort("exposed_ns", descending=True, nulls_last=True),
        ("mean_bytes", "direction", "bytes_per_s", "time_ns"),
        ("bytes_per_s", "link", "peak_share", "waits"),
        time_ns=figures.each(int(rows["time_ns"].sum())),
        kernel_ns=figures.each(int(figures.busy["kernel_ns"].sum())),
    )


RULE: Final = Rule(
    id="exposed_copies",
    title="large copies between host and device that no kernel hides",
    finds=_finds,
    kind="at most",
    says=(
        "{exposed_ns} of {time_ns} of copies run with no kernel beside them: {count} copies, "
        "{direction}[ of {mean_bytes} on average][ at {bytes_per_s}]; kernels take {kernel_ns}."
    ),
    estimate=(
        "all their exposed time: what stays on the device is not copied. Copied beside kernels, "
        "they save no more than the kernels take."
    ),
    doubt=(
        "A recording without steps has the first copy of the weights in it, which happens once. "
        "Weights that do not fit the device have to be copied."
    ),
    change=Change(
        pytorch="keep weights and states on the device (no .to(device) of a model or offload in "
        "the step); copy the next batch on a stream of its own while this one computes",
        tensorflow="prefetch_to_device at the end of the input pipeline; keep variables on the "
        "device, not under tf.device('CPU')",
        jax="keep parameters on the device between steps (donate_argnums), and jax.device_put "
        "the next batch before the step that runs",
    ),
)
