"""The colours of pictures: a palette, and a colour for each class of work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

PALETTE: Final = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b5a800"),
    *("#6a51a3", "#8c6d31", "#4d9221", "#999999"),
)
"""Colours that remain different with the common kinds of colour blindness: the first seven are
those of Okabe and Ito, "Color universal design" (2008), with a yellow that shows on white."""

CLASS_COLOURS: Final[Mapping[str, str]] = {
    **{"conv": "#0072b2", "gemm": "#e69f00", "attention": "#009e73", "normalization": "#cc79a7"},
    **{"elementwise": "#d55e00", "memcpy": "#56b4e9", "collective": "#b5a800"},
    **{"optimizer": "#6a51a3", "layout": "#8c6d31", "reduction": "#4d9221", "other": "#999999"},
    **{"activation": "#f4a582", "bias": "#7f2704", "softmax": "#8e0152", "loss": "#e7298a"},
    **{"pooling": "#a6d854", "rnn": "#00441b", "memset": "#44142c", "fused": "#c4a5ea"},
    **{"indexing": "#47525c", "image": "#86d9bd", "random": "#dcc48e", "dropout": "#f5c6de"},
    **{"embedding": "#141f66", "fft": "#00c0cc", "pass": "#2f6f8f"},
}
"""A colour for each category, the same in all pictures; the categories with most
time in recorded traces have the colours of :data:`PALETTE`."""


def series_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each of ``names``, which a series has in all charts of a page."""
    return {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(dict.fromkeys(names))}


def class_colour(category: str) -> str:
    """Return the colour of ``category``; an unknown one has the colour of unclassified work."""
    return CLASS_COLOURS.get(category, CLASS_COLOURS["other"])


EVENT_COLOURS: Final[Mapping[str, Mapping[str, str]]] = {
    "operators": {"operators": "#b8c4ce"},
    "stream": {"synchronization": "#cdf5cd"},
    "ranges": {"ranges": "#9fb3a5"},
    "annotations": {"annotations": "#9fb3a5"},
    "calls": {"calls": "#c9bda6"},
    "critical": {
        **{"launch": "#f7e05e", "host": "#a0606c", "sync": "#ff7f6b", "gap": "#dfe6ee"},
    },
    "idle": {
        **{"data_loader": "#c0392b", "synchronization": "#ff7f6b", "launch_latency": "#f7e05e"},
        **{"operator": "#d8e29a", "host": "#a0606c", "copy": "#1fe0c0", "collective": "#a0f020"},
        **{"event": "#9f86ff", "allocation": "#ff9ad5", "driver": "#7a5a48"},
        **{"profiler": "#5d6d5f", "queued": "#dfe6ee", "not_recorded": "#b0b6be"},
        **{"same_launch": "#9dbf9a", "before_first": "#efe0bd", "after_last": "#d3c8ea"},
    },
}
"""Kind of track -> category -> colour. Work has the colour of its category on every track, a wait
the colour of its idle cause; other events are grey. A synchronization on a stream is pale, because
it is excluded from work."""
