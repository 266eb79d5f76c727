"""The frameworks of the workloads. Imports nothing: the command line needs it at its start."""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """The frameworks that the networks are built in, by the names of their workloads."""

    PYTORCH = "pytorch"
    KERAS = "keras"
    JAX = "jax"
