"""``traceana record``: runs a workload or a script under a profiler and writes a run's folder.

``inside/`` runs in the recorded process. It uses the standard library only, because the script's
Python may not have traceana. This module imports nothing else, because the command line imports it
at its start.
"""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """The frameworks of the workloads; values are the names of their modules."""

    PYTORCH = "pytorch"
    KERAS = "keras"
    JAX = "jax"
