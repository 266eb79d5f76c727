"""Abstract inputs, and shapes of abstract values, for what runs on JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from traceana.describe.inputs import Call
from traceana.errors import BadModelError


def leaves(tree: Any) -> list[Any]:
    """Return the arrays in a tree."""
    return [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]


def dtypes_of(call: Call, parameters: Sequence[Any]) -> list[str]:
    """Return the dtype of each input, by default that of the first parameter of a float type."""
    floating = (str(one.dtype) for one in parameters if jnp.issubdtype(one.dtype, jnp.floating))
    default = next(floating, "float32")
    return [dtype or default for dtype in call.dtypes]


def abstract(call: Call, dtypes: Sequence[str]) -> list[jax.ShapeDtypeStruct]:
    """Return inputs without values."""
    return [
        jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
        for shape, dtype in zip(call.shapes, dtypes, strict=True)
    ]


def shapes_in(tree: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays in a tree that are no random keys."""
    return [
        tuple(leaf.shape)
        for leaf in leaves(tree)
        if leaf.shape and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]


def refused(call: Call, error: Exception) -> BadModelError:
    """Return the error for a model that does not run on these inputs."""
    shapes = ", ".join(map(str, call.shapes))
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return BadModelError(
        f"the model does not run on inputs of shape {shapes}: {reason}; give the shape and dtype "
        "that it takes, with the batch first"
    )
