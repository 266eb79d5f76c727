"""Predictions for pairs of recordings by others, which are not part of the repository.

``python -m benchmarks.backtest.pairs FOLDER`` reads the traces of :data:`PAIRS` under ``FOLDER``,
predicts the second of each pair from the first alone, and prints a Markdown table, which stands in
``docs/whatif.md``; and for convolutions of one layer the summed GPU time at ten times the batch.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Final

import traceana
from benchmarks.backtest.__main__ import table

PAIRS: Final = (
    ("ResNet-50 on V100, 0 to 4 loader workers", "kineto/resnet50_train_v100_workers0.json.gz",
     "kineto/resnet50_train_v100_workers4.json.gz", "workers:4"),
    ("recommendation model, A100 to V100", "kineto/diff_control_a100.json.gz",
     "kineto/diff_test_v100.json.gz", "gpu:V100-SXM2-16GB"),
    ("recommendation model, V100 to A100", "kineto/diff_test_v100.json.gz",
     "kineto/diff_control_a100.json.gz", "gpu:A100-SXM4-40GB"),
    ("TimeSformer, H100 to MI300X", "kineto/timesformer_h100.json.gz",
     "kineto/timesformer_mi300x.json.gz", "gpu:MI300X"),
    ("TimeSformer, MI300X to H100", "kineto/timesformer_mi300x.json.gz",
     "kineto/timesformer_h100.json.gz", "gpu:H100"),
)  # fmt: skip
"""What they are, both files and the scenario."""
_LAYERS: Final = "nvprof-printed/tegra_x1_celeba/l{layer}/GPUTrace_l{layer}_bs{batch}_{trial}.csv"
_TRIALS: Final = range(1, 31, 3)


def compared(folder: Path) -> str:
    """Return the table of all pairs."""
    rows = []
    for name, before, after, scenario in PAIRS:
        (found,) = traceana.open(folder / before).whatif(scenario).frame.to_dicts()
        happened = traceana.open(folder / after).whatif("host x 1").frame["step_ns"][0]
        rows.append(
            {
                "case": name,
                "scenario": scenario,
                "before_ms": found["step_ns"] / 1e6,
                "after_ms": happened / 1e6,
                "predicted_ms": found["predicted_ns"] / 1e6,
                "low_ms": found["low_ns"] / 1e6,
                "high_ms": found["high_ns"] / 1e6,
                "at_most_ms": (found["step_ns"] - found["at_most_ns"]) / 1e6,
            }
        )
    return table(rows)


def batches(folder: Path) -> str:
    """Return the summed time of kernels of each layer at a batch, as predicted from a tenth of it
    by ``batch:10`` and as measured, in ms, medians over trials."""
    lines = ["| layer | batch | GPU time before | predicted | happened |", "|--:|--:|--:|--:|--:|"]
    for layer in range(1, 6):
        for batch in (10, 100, 1000):
            before, after, predicted = [], [], []
            for trial in _TRIALS:
                small, large = (
                    traceana.open(folder / _LAYERS.format(layer=layer, batch=size, trial=trial))
                    for size in (batch // 10, batch)
                )
                time = small.kernels().frame["time_ns"].sum()
                longer = -small.whatif("kernel:. x 1 + batch:10").frame["at_most_ns"][0]
                copies = small.transfers().frame["time_ns"].sum()
                before.append(time)
                # Copies to the device take ten times as long, and are no kernels.
                predicted.append(time + longer - 9 * copies)
                after.append(large.kernels().frame["time_ns"].sum())
            cells = (f"{statistics.median(one) / 1e6:.1f}" for one in (before, predicted, after))
            lines.append(f"| {layer} | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest.pairs")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print(compared(folder), batches(folder), sep="\n\n")


if __name__ == "__main__":
    main()
