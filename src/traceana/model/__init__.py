"""The layers of a model: the manifest, its file, and the adapters that describe a live model.

The adapters are imported by :mod:`traceana.model.live_model` alone: a report needs none of them.
"""

from __future__ import annotations

from traceana.model.manifest import Input, Layer, Manifest, find, read

__all__ = ["Input", "Layer", "Manifest", "find", "read"]
