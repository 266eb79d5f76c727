"""What to record for a study that lacks something: sentences with the command."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceana.study.side_by_side import Traced

_FRAMEWORKS = {"PyTorch": "pytorch", "Keras": "keras", "JAX": "jax"}


def command(framework: str | None, network: str | None, *options: str) -> str:
    """Return the command that records ``network`` in ``framework`` with more ``options``."""
    words = ["traceana", "record", "--framework", _FRAMEWORKS.get(framework or "", "pytorch")]
    words += ["--network", quote(network or "alexnet"), *options]
    return " ".join(words)


def sweep(axis: str, values: Sequence[object]) -> str:
    """Return the option that records a run for each of ``values``."""
    return f"--sweep {axis}={','.join(map(str, values))}"


def on_a_gpu(traced: Sequence[Traced], why: str) -> tuple[str, ...]:
    """Return what to record for a study that only GPUs fill, where all runs are of the CPU."""
    if traced and all(one.run.place == "CPU" for one in traced):
        run = traced[0].run
        words = command(run.framework, run.network, "--device cuda", "-o FOLDER")
        return (f"{why}: {words}, where there is a GPU",)
    return to_record(traced, "--device cuda")


def to_record(traced: Sequence[Traced], *options: str) -> tuple[str, ...]:
    """Return what to record where there is no trace at all, or none to put beside it."""
    batch = "--batch 32"
    if not traced:
        both = [command(name, "alexnet", batch, *options, "-o FOLDER") for name in _FRAMEWORKS]
        return (f"to fill this study: {'; '.join(both)}",)
    if len(traced) > 1:
        return ()
    run = traced[0].run
    other = "JAX" if run.framework == "PyTorch" else "PyTorch"
    batch = f"--batch {run.batch}" if run.batch else batch
    words = command(other, run.network, batch, *options, "-o FOLDER")
    return (f"one run is there; beside it: {words}",)
