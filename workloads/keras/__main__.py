"""Train a network for a few steps, under TensorFlow's profiler if a folder is given.

python -m workloads.keras --batch 8 --log logs
"""

from __future__ import annotations

import sys

from workloads.keras.train import train
from workloads.profiled import run
from workloads.support import Framework

if __name__ == "__main__":
    sys.exit(run(Framework.KERAS, __doc__, train))
