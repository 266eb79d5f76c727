"""The layers of a model: the manifest, its file, and the adapters that describe a live model.

Only :mod:`traceana.model.live_model` imports the adapters, so a report does not load them.
"""

from __future__ import annotations

from traceana.model.manifest import Input, Layer, Manifest, find, read

__all__ = ["Input", "Layer", "Manifest", "find", "read"]
