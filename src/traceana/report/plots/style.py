"""How pictures look: colours that colour-blind readers can tell apart, and nothing to spare."""

from __future__ import annotations

from typing import Any, Final

# Okabe and Ito, "Color Universal Design" (2008), without the yellow, which white swallows.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final = ("-", "--", ":")
GREY: Final = "#6B6B6B"
INK: Final = "#222222"

PARAMETERS: Final[dict[str, Any]] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    # Names are names: a dollar sign begins no formula.
    "text.parse_math": False,
    "text.usetex": False,
    # Text stays text, and the same figures give the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "traceana",
    "figure.dpi": 100,
    "savefig.dpi": 150,
}


def of_series(number: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the series of this number: 21 that differ."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }
