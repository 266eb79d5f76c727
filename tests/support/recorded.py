"""Networks that are really trained and recorded here, in processes that the command starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from tests.support.command_line import run
from tests.support.frameworks import imported_sooner, needs

FRAMEWORKS: Final = ("pytorch", "keras", "jax")
# With one image XLA rewrites the matrix products and drops their scopes.
TINY: Final = (
    *("--batch", "4", "--steps", "2", "--warm-up", "1"),
    *("--image-size", "67", "--width-divisor", "16", "--classes", "10"),
)


def recorded_sweep(folder: Path, *words: str) -> Path:
    """Record with ``words`` and no run without the profiler; returns ``folder``."""
    with imported_sooner():
        done = run("record", "--no-baseline", *words, "-o", folder)
    assert done.exit_code == 0, done.stderr
    return folder


def tiny(folder: Path, network: str) -> Path:
    """Record ``network``, tiny, in all frameworks: a run each in ``framework=NAME``."""
    for module in ("torch", "tensorflow", "jax"):
        needs(module)
    axis = f"framework={','.join(FRAMEWORKS)}"
    return recorded_sweep(folder, "--sweep", axis, "--network", network, *TINY)


def unnumbered(paths: pl.Series) -> pl.Series:
    """Return layers' paths without the numbers that TensorFlow gives to the scopes of a model.

    A trace opened without its manifest shows scopes as they were recorded: ``alexnet_1.conv1_1``.
    """
    return paths.str.replace_all(r"_1(\.|$)", "$1")
