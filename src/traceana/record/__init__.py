"""``traceana record``: runs a workload or a script under a profiler, into a run's folder.

``inside/`` runs in the recorded process. It needs the standard library only, for the script's
Python need not have traceana. This module imports nothing else: the command line starts with it.
"""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """The frameworks of the workloads, by the names of their modules."""

    PYTORCH = "pytorch"
    KERAS = "keras"
    JAX = "jax"
