"""The layers of a model: the manifest, its file, and the adapters that describe a live model."""

from __future__ import annotations

from traceana.model.live_model import describe
from traceana.model.manifest import Input, Layer, Manifest, find, read

__all__ = ["Input", "Layer", "Manifest", "describe", "find", "read"]
