"""What to record for a study that lacks something: sentences with the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from traceana.study.side_by_side import Traced

_FRAMEWORKS: Final = {"PyTorch": "pytorch", "Keras": "keras", "JAX": "jax"}
NETWORKS: Final = frozenset(
    {
        *("alexnet", "alexnet_2012", "vgg16", "googlenet", "resnet18", "resnet50"),
        *("lenet5", "cifar10_quick", "mlp"),
    }
)
"""The networks of the workloads, which are not in the package."""


def command(
    framework: str | None,
    network: str | None,
    *options: str,
    sweep: tuple[str, Sequence[object]] | None = None,
) -> str:
    """Return the command that records ``network`` in ``framework`` with more ``options``.

    ``sweep`` is an axis and its values. A network that is none of the workloads was trained by a
    script, whose options nobody knows.
    """
    swept = [] if sweep is None else ["--sweep", f"{sweep[0]}={','.join(map(str, sweep[1]))}"]
    if network is not None and network not in NETWORKS:
        place = [] if sweep is None else [f"{{{sweep[0]}}}"]
        return " ".join(["traceana record", *swept, "-o FOLDER -- YOUR COMMAND", *place])
    own = ["--framework", _FRAMEWORKS.get(framework or "", "pytorch"), "--network"]
    return " ".join(["traceana record", *own, network or "alexnet", *swept, *options, "-o FOLDER"])


def on_a_gpu(traced: Sequence[Traced], why: str) -> tuple[str, ...]:
    """Return what to record for a study that only GPUs fill, where all runs are of the CPU."""
    if traced and all(one.run.place == "CPU" for one in traced):
        run = traced[0].run
        words = command(run.framework, run.network, "--device cuda")
        return (f"{why}: {words}, where there is a GPU",)
    return to_record(traced, "--device cuda")


def to_record(traced: Sequence[Traced], *options: str) -> tuple[str, ...]:
    """Return what to record where there is no trace at all, or none to put beside it."""
    batch = "--batch 32"
    if not traced:
        both = [command(name, "alexnet", batch, *options) for name in _FRAMEWORKS]
        return (f"to fill this study: {'; '.join(both)}",)
    if len(traced) > 1:
        return ()
    run = traced[0].run
    other = "JAX" if run.framework == "PyTorch" else "PyTorch"
    batch = f"--batch {run.batch}" if run.batch else batch
    words = command(other, run.network, batch, *options)
    return (f"one run is there; beside it: {words}",)
