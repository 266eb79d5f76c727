"""The findings of :mod:`traceana.analyze.attention` in sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from traceana.report import human
from traceana.report.names import brief
from traceana.report.text import cut_end

Row = dict[str, Any]


def sentence(row: Row) -> tuple[str, str]:
    """Return what a finding says, and what to look at next."""
    return _SENTENCES[row["rule"]](row)


def _time(row: Row) -> str:
    return f"{human.duration(row['time_ns'])} ({human.share(row['share'])})"


def _subject(row: Row) -> str:
    return cut_end(brief(row["subject"] or "?"), 60)


def _idle(row: Row) -> tuple[str, str]:
    when = "from its first to its last work"
    if row["count"] is not None:
        when = f"of {human.counted(row['count'], 'measured step')}"
    return (
        f"The GPU is idle {human.share(row['share'])} {when}: {human.duration(row['time_ns'])}.",
        "Look at the host: data loading, launches, synchronization.",
    )


def _layout(row: Row) -> tuple[str, str]:
    return (
        f"Layout changes in a network of convolutions take {_time(row)} in "
        f"{human.counted(row['count'], 'kernel')}.",
        "Keep one memory format throughout (channels_last or NCHW).",
    )


def _bias(row: Row) -> tuple[str, str]:
    return (
        f"Bias and activation kernels of their own take {_time(row)}: they only move memory.",
        "Fuse them into the convolution or product before them.",
    )


def _collectives(row: Row) -> tuple[str, str]:
    return (
        f"Collectives take {_time(row)} in {human.counted(row['count'], 'call')}.",
        "See that they overlap with computing.",
    )


def _unclassified(row: Row) -> tuple[str, str]:
    return (
        f"{_time(row)} of the work is of no known class.",
        "`traceana kernels` names it; --rules takes classes of your own.",
    )


def _pageable(row: Row) -> tuple[str, str]:
    return (
        f"Copies from or to pageable host memory ({human.count(row['count'])}) "
        f"take {_time(row)}{_moved(row)}.",
        "Pin it (pin_memory=True).",
    )


def _host(row: Row) -> tuple[str, str]:
    return (
        f"Copies between host and device ({human.count(row['count'])}) take "
        f"{_time(row)}{_moved(row)}.",
        "Overlap them with computing, or move less.",
    )


def _small(row: Row) -> tuple[str, str]:
    return (
        f"{human.count(row['count'])} small copies between host and device take "
        f"{_time(row)}{_moved(row)}.",
        "Make one larger copy of many.",
    )


def _moved(row: Row) -> str:
    if not row["bytes"] or not row["time_ns"]:
        return ""
    return f" for {human.size(row['bytes'])}, {human.rate(row['bytes'] * 1e9 / row['time_ns'])}"


def _layer(row: Row) -> tuple[str, str]:
    return (
        f"Layer {_subject(row)} alone takes {_time(row)}.",
        "`traceana layers` shows it among the others.",
    )


def _kernel(row: Row) -> tuple[str, str]:
    return (
        f"One {row['rule'].removeprefix('one_')}, {_subject(row)}, takes {_time(row)} in "
        f"{human.counted(row['count'], 'call')}.",
        "`traceana kernels` shows it among the others.",
    )


_SENTENCES: Final[dict[str, Callable[[Row], tuple[str, str]]]] = {
    "idle": _idle,
    "layout_around_convolutions": _layout,
    "separate_bias_and_activation": _bias,
    "collectives": _collectives,
    "unclassified": _unclassified,
    "pageable_copies": _pageable,
    "host_copies": _host,
    "small_copies": _small,
    "one_layer": _layer,
    "one_kernel": _kernel,
    "one_operator": _kernel,
}
