"""Prints how often planted changes are found in series of runs, and how often there is none.

python -m benchmarks.change_points --series 100
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traceana.comparison.change_points import change_points

Floats = npt.NDArray[np.float64]

RUNS: Final = 60
NOISE: Final = 0.01
"""Standard deviation from run to run, relative to the step."""
STEP_NS: Final = 20e6


class Planted(NamedTuple):
    """A series of step times (ns), and the first run after its change, None without one."""

    values: Floats
    place: int | None


def _step(size: float, after: int | None = None) -> Callable[[np.random.Generator], Planted]:
    """Return a maker of series with a change of the relative ``size``, ``after`` runs long."""

    def planted(rng: np.random.Generator) -> Planted:
        place = RUNS - after if after else int(rng.integers(10, RUNS - 9))
        values = _level(rng).values
        values[place:] *= 1 + size
        return Planted(values, place)

    return planted


def _level(rng: np.random.Generator) -> Planted:
    return Planted(STEP_NS * (1 + NOISE * rng.standard_normal(RUNS)), None)


def _heavy_tails(rng: np.random.Generator) -> Planted:
    return Planted(STEP_NS * (1 + NOISE * rng.standard_t(3, RUNS)), None)


def _drift(rng: np.random.Generator) -> Planted:
    return Planted(_level(rng).values * (1 + 0.1 * np.arange(RUNS) / RUNS), None)


def _outlier(rng: np.random.Generator) -> Planted:
    values = _level(rng).values
    values[rng.integers(RUNS)] *= 1.3
    return Planted(values, None)


def _two_machines(rng: np.random.Generator) -> Planted:
    values = _level(rng).values
    values[::2] *= 1.05
    return Planted(values, None)


def _bimodal(rng: np.random.Generator) -> Planted:
    return Planted(_level(rng).values * np.where(rng.random(RUNS) < 0.5, 1.05, 1), None)


def _bump(rng: np.random.Generator) -> Planted:
    values = _level(rng).values
    place = int(rng.integers(10, RUNS - 18))
    values[place : place + 8] *= 1.05
    return Planted(values, place)


SERIES: Final[dict[str, Callable[[np.random.Generator], Planted]]] = {
    "level": _level,
    "level, heavy tails": _heavy_tails,
    "one outlier, +30 %": _outlier,
    "two machines alternate, 5 %": _two_machines,
    "two modes, 5 %": _bimodal,
    "step of 2 %": _step(0.02),
    "step of 5 %": _step(0.05),
    "step of 10 %": _step(0.10),
    "step of 2 %, 5 runs ago": _step(0.02, 5),
    "step of 5 %, 3 runs ago": _step(0.05, 3),
    "8 slow runs, 5 %": _bump,
    "drift of 10 %": _drift,
}


class Outcome(NamedTuple):
    """Of a kind of series: how many have a change, at its place, another change, and a drift."""

    series: int
    detected: int
    in_place: int
    others: int
    drifts: int


def outcome(
    planted: Callable[[np.random.Generator], Planted], series: int, seed: int = 0
) -> Outcome:
    """Return what is found in so many ``series`` of a kind."""
    detected = in_place = others = drifts = 0
    for number in range(series):
        values, place = planted(np.random.default_rng([seed, number]))
        changes = change_points(values)
        steps = [change.first for change in changes if not change.drift]
        near = [first for first in steps if place is not None and abs(first - place) <= 1]
        detected += bool(changes)
        in_place += bool(near)
        # Runs that are slow for a while have a second change, back.
        others += len(steps) > len(near) + (planted is _bump)
        drifts += any(change.drift for change in changes)
    return Outcome(series, detected, in_place, others, drifts)


def table(series: int) -> Iterator[str]:
    """Yield the lines of a Markdown table of all kinds of series."""
    yield f"| series of {RUNS} runs, noise {NOISE:.0%} | change | place ± 1 | other | drift |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, planted in SERIES.items():
        _, detected, in_place, others, drifts = outcome(planted, series)
        place = f"{in_place}" if planted(np.random.default_rng(0)).place is not None else ""
        yield f"| {name} | {detected} | {place} | {others} | {drifts} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.change_points", description=main.__doc__
    )
    parser.add_argument("--series", type=int, default=100, help="series of each kind")
    options = parser.parse_args()
    for line in table(options.series):
        print(line, flush=True)


if __name__ == "__main__":
    main()
