"""Keras, imported without what it imports only where that is installed: a third of its time."""

from __future__ import annotations

import gc

# Hides the others.
import tests.support.started.sitecustomize  # noqa: F401

# Imports make no garbage, and looking for it takes a second.
gc.disable()

import keras  # noqa: E402, F401

gc.enable()
