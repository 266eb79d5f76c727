"""Train a network for a few steps, under TensorFlow's profiler if a folder is given.

python -m workloads.keras --batch 8 --log logs
"""

from __future__ import annotations

import sys

from workloads.profiled import run
from workloads.support import Framework


def main() -> int:
    """Run the command; return the exit code (2: invalid options)."""
    # Keras and TensorFlow import these where they are installed, in more than a second, and do
    # without where they are not. None is a module that cannot be imported.
    for name in ("jax", "matplotlib", "pandas"):
        sys.modules[name] = None  # type: ignore[assignment]
    from workloads.keras.train import train

    return run(Framework.KERAS, __doc__, train)


if __name__ == "__main__":
    sys.exit(main())
