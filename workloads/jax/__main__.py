"""Train a network for a few steps, under JAX's profiler if a folder is given.

python -m workloads.jax --batch 8 --log logs
"""

from __future__ import annotations

import sys
from pathlib import Path

from workloads.options import RunOptions
from workloads.profiled import run
from workloads.step_times import StepTimes
from workloads.support import Framework


def _trained(options: RunOptions, log: Path | None) -> StepTimes:
    # JAX is imported once the options hold: it takes longer than to refuse them.
    from workloads.jax.train import train

    return train(options, log)


if __name__ == "__main__":
    sys.exit(run(Framework.JAX, __doc__, _trained))
