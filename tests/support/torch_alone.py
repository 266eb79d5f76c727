"""PyTorch, imported with what its first optimizer imports: as much again."""

from __future__ import annotations

import gc

# Imports make no garbage, and looking for it takes half a second.
gc.disable()

import torch._dynamo  # noqa: E402, F401

gc.enable()
