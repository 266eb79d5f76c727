"""Keras, imported without what it imports only where that is installed: a third of its time."""

from __future__ import annotations

import sys

# None is a module that cannot be imported: Keras and TensorFlow then do without.
for name in ("jax", "matplotlib", "pandas"):
    sys.modules[name] = None  # type: ignore[assignment]

import keras  # noqa: E402, F401
