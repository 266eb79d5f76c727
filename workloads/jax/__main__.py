"""Train a network for a few steps, under JAX's profiler if a folder is given.

python -m workloads.jax --batch 8 --log logs
"""

from __future__ import annotations

import sys

from workloads.jax.train import train
from workloads.profiled import run
from workloads.support import Framework

if __name__ == "__main__":
    sys.exit(run(Framework.JAX, __doc__, train))
