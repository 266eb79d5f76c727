"""Layer manifests of the workloads, as traceana reads them."""

from __future__ import annotations

import msgspec

from traceana.runs.layer_manifest import Manifest
from workloads.manifest import layer_manifest
from workloads.options import RunOptions


def manifest_of(options: RunOptions) -> Manifest:
    """Return the layer manifest that a workload writes with ``options``."""
    return msgspec.convert(layer_manifest(options), Manifest)
