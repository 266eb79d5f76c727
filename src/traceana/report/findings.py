"""The findings of :mod:`traceana.analyze.attention` in sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from traceana.report import human
from traceana.report.text import plain, shortened

Row = dict[str, Any]


def sentence(row: Row) -> tuple[str, str]:
    """Return what a finding says, and what to look at next."""
    return _SENTENCES[row["rule"]](row)


def _time(row: Row) -> str:
    return f"{human.duration(row['time_ns'])} ({human.share(row['share'])})"


def _subject(row: Row) -> str:
    return shortened(plain(row["subject"] or "?"), 48)


def _idle(row: Row) -> tuple[str, str]:
    return (
        f"The GPU is idle {human.share(row['share'])} of the time between its first and last "
        f"work: {human.duration(row['time_ns'])}.",
        "the host, data loading, synchronization",
    )


def _layout(row: Row) -> tuple[str, str]:
    return (
        f"Layout changes in a network of convolutions take {_time(row)} in "
        f"{human.counted(row['count'], 'kernel')}.",
        "one memory format throughout (channels_last, or NCHW)",
    )


def _bias(row: Row) -> tuple[str, str]:
    return (
        f"Bias and activation kernels of their own take {_time(row)}: they only move memory.",
        "fusion into the convolution or matrix product before them",
    )


def _collectives(row: Row) -> tuple[str, str]:
    return (
        f"Collectives take {_time(row)} in {human.counted(row['count'], 'call')}.",
        "whether they overlap with computing",
    )


def _unclassified(row: Row) -> tuple[str, str]:
    return (
        f"{_time(row)} of the work is of no known class.",
        "traceana kernels, and a rule file of your own (--rules)",
    )


def _pageable(row: Row) -> tuple[str, str]:
    return (
        f"Copies from or to pageable host memory ({human.count(row['count'])}) "
        f"take {_time(row)}{_moved(row)}.",
        "pinned memory (pin_memory=True)",
    )


def _small(row: Row) -> tuple[str, str]:
    return (
        f"{human.count(row['count'])} small copies between host and device take "
        f"{_time(row)}{_moved(row)}.",
        "one larger copy in place of many",
    )


def _moved(row: Row) -> str:
    if not row["bytes"] or not row["time_ns"]:
        return ""
    return f" for {human.size(row['bytes'])}, {human.rate(row['bytes'] * 1e9 / row['time_ns'])}"


def _layer(row: Row) -> tuple[str, str]:
    return (f"Layer {_subject(row)} alone takes {_time(row)}.", "traceana layers")


def _kernel(row: Row) -> tuple[str, str]:
    return (
        f"One kernel, {_subject(row)}, takes {_time(row)} in "
        f"{human.counted(row['count'], 'call')}.",
        "traceana kernels",
    )


_SENTENCES: Final[dict[str, Callable[[Row], tuple[str, str]]]] = {
    "idle": _idle,
    "layout_around_convolutions": _layout,
    "separate_bias_and_activation": _bias,
    "collectives": _collectives,
    "unclassified": _unclassified,
    "pageable_copies": _pageable,
    "small_copies": _small,
    "one_layer": _layer,
    "one_kernel": _kernel,
}
