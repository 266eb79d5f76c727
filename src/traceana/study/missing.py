"""What to record for a study that lacks something: sentences with the command."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

_FRAMEWORKS = {"PyTorch": "pytorch", "Keras": "keras", "JAX": "jax"}


def command(framework: str | None, network: str | None, *options: str) -> str:
    """Return the command that records ``network`` in ``framework`` with more ``options``."""
    words = ["traceana", "record", _FRAMEWORKS.get(framework or "", "pytorch")]
    words += ["--network", quote(network or "alexnet"), *options]
    return " ".join(words)


def sweep(axis: str, values: Sequence[object]) -> str:
    """Return the option that records a run for each of ``values``."""
    return f"--sweep {axis}={','.join(map(str, values))}"
