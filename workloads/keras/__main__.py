"""Train a network for a few steps, under TensorFlow's profiler if a folder is given.

python -m workloads.keras --batch 8 --log logs
"""

from __future__ import annotations

import sys
from pathlib import Path

from workloads.options import RunOptions
from workloads.profiled import run
from workloads.step_times import StepTimes
from workloads.support import Framework


def _trained(options: RunOptions, log: Path | None) -> StepTimes:
    # TensorFlow is imported once the options hold: it takes longer than to refuse them. It and
    # Keras import these where they are installed, in more than a second, and do without where they
    # are not. None is a module that cannot be imported.
    for name in ("jax", "pandas"):
        sys.modules[name] = None  # type: ignore[assignment]
    from workloads.keras.train import train

    return train(options, log)


if __name__ == "__main__":
    sys.exit(run(Framework.KERAS, __doc__, _trained))
