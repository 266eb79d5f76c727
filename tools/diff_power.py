"""How often ``diff`` finds a difference that is there, and one that is not, on repeated trials.

    python -m tools.diff_power FOLDER 'l{layer}_bs{batch}_{trial}' [PLOT.svg]

Each trial of a layer and batch is a step: the time of its kernels. Two runs of N steps are drawn
from the trials of one group, without a trial in common; in one of them every time is multiplied by
1 + the change. Without a change (A/A) every verdict other than ``same`` and ``inconclusive`` is
wrong. The verdict is the one of the step in ``traceana diff``, by the median, at its level.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from traceana.comparison.verdicts import Criteria, step_verdict
from traceana.report import numbers
from traceana.report.charts.plot import page_file
from traceana.report.page import Axis, Chart, Data, Heading, Marks, Page, Rows
from traceana.study.trials import find_trials, kernel_times, read_trials
from traceana.table import Kind

STEPS: Final = (5, 10, 15)
CHANGES: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
ROUNDS: Final = 20
"""Draws from each group, change and number of steps; ten times as many without a change."""
SEED: Final = 0


def groups(folder: Path, pattern: str) -> dict[tuple[str, int], pl.Series]:
    """Return the kernel time (ns) of each trial, by series and batch."""
    found, _ = find_trials([folder], pattern)
    times = kernel_times(read_trials(found, lambda reason: print(reason, file=sys.stderr)))
    whole = times.group_by("series", "batch", "trial").agg(pl.col("time_ns").sum())
    return {
        (str(key[0]), int(str(key[1]))): rows["time_ns"]
        for key, rows in whole.sort("series", "batch", "trial").group_by(
            "series", "batch", maintain_order=True
        )
    }


def share_found(
    times: pl.Series, steps: int, change: float, rounds: int, rng: np.random.Generator
) -> float:
    """Return the share of draws in which the second run is ``slower``; A/A: or ``faster``."""
    criteria, found = Criteria(), 0
    for _ in range(rounds):
        drawn = times.gather(rng.permutation(len(times)))
        a, b = drawn[:steps], drawn[steps : 2 * steps]
        slower = (b.cast(pl.Float64) * (1 + change)).round().cast(pl.Int64)
        verdict = step_verdict([a], [slower], criteria).verdict
        found += verdict == "slower" or (not change and verdict == "faster")
    return found / rounds


def measured(trials: dict[tuple[str, int], pl.Series]) -> pl.DataFrame:
    """Return ``change``, ``steps``, and the mean, least and largest share found of the groups."""
    rng, rows = np.random.default_rng(SEED), []
    for change in CHANGES:
        for steps in STEPS:
            rounds = ROUNDS if change else 10 * ROUNDS
            shares = [share_found(times, steps, change, rounds, rng) for times in trials.values()]
            rows.append((change, steps, float(np.mean(shares)), min(shares), max(shares)))
    return pl.DataFrame(rows, schema=["change", "steps", "mean", "least", "most"], orient="row")


def known(trials: dict[tuple[str, int], pl.Series]) -> tuple[int, int]:
    """Return how many of the changes of the batch to the next are found, and how many there are."""
    found, pairs = 0, list(zip(trials.items(), list(trials.items())[1:], strict=False))
    own = [(a, b) for ((series, _), a), ((other, _), b) in pairs if series == other]
    for a, b in own:
        found += step_verdict([a[:15]], [b[:15]], Criteria()).verdict == "slower"
    return found, len(own)


def plot(shares: pl.DataFrame, path: Path) -> None:
    """Write the curves of :func:`measured`."""
    rows = [
        {
            "x": f"{change:.0%}",
            "y": mean,
            "colour": f"{numbers.counted(steps, 'step')} in each run",
        }
        for change, steps, mean in shares.select("change", "steps", "mean").iter_rows()
    ]
    frame = pl.DataFrame(rows)
    chart = Chart(
        "Changes of the step time that are found",
        "Share of draws in which a change is found, by its size.",
        Axis("change of the step time", Kind.TEXT),
        Axis("found, share of draws", Kind.SHARE),
        (Marks(frame, "line", "x", "y", colour="colour"),),
    )
    page = Page("diff", (Heading(chart.title), chart), Data(Rows(frame)))
    path.write_bytes(page_file(page, "svg"))


def main() -> None:
    """Print the table, and write the plot where a third argument names it."""
    trials = groups(Path(sys.argv[1]), sys.argv[2])
    quartiles = [np.quantile(each.to_numpy(), (0.25, 0.5, 0.75)) for each in trials.values()]
    spreads = [float((high - low) / middle) for low, middle, high in quartiles]
    print(
        f"{len(trials)} groups of {min(map(len, trials.values()))} trials or more; interquartile "
        f"range over the median: {min(spreads):.1%} to {max(spreads):.1%}, median "
        f"{np.median(spreads):.1%}"
    )
    shares = measured(trials)
    print("\n| change | " + " | ".join(f"{steps} steps" for steps in STEPS) + " |")
    print("|---:|" + "---:|" * len(STEPS))
    for change in CHANGES:
        of = shares.filter(pl.col("change") == change)
        cells = [f"{mean:.1%} ({least:.0%} to {most:.0%})" for mean, least, most in
                 of.select("mean", "least", "most").iter_rows()]  # fmt: skip
        print(f"| {change:.0%} | " + " | ".join(cells) + " |")
    print("\nchanges of the batch to the next, found: {} of {}".format(*known(trials)))
    if len(sys.argv) > 3:
        plot(shares, Path(sys.argv[3]))


if __name__ == "__main__":
    main()
