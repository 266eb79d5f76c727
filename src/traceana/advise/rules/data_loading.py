"""Devices that wait for the next batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceana.advise.model import Change, Found, Rule
from traceana.advise.waiting import waits

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    return waits(figures, "data_loader", by="range")


RULE: Final = Rule(
    id="data_loading",
    title="steps that wait for the next batch",
    finds=_finds,
    kind="at most",
    says=("Nothing is computed for {idle_ns} while the next batch is waited for[ ({culprit})]."),
    estimate="all the idle time whose cause is loading: batches made ahead cost none of it.",
    doubt="The host needs cores to make batches ahead; with none to spare nothing is gained.",
    change=Change(
        pytorch="DataLoader(num_workers=N, prefetch_factor=2 or more, persistent_workers=True); "
        "decode on the device, or store data decoded",
        tensorflow="dataset.map(..., num_parallel_calls=AUTOTUNE), cache, and prefetch(AUTOTUNE) "
        "as the last",
        jax="make batches in other processes (grain, tf.data) and put them on the device ahead",
    ),
)
