"""Write a network with its weights and images into one file, for frameworks of older Pythons.

python -m workloads.legacy.plan plan.npz --network alexnet --batch 4
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from workloads.data import initial_weights, synthetic_batch
from workloads.network import Network, NetworkError
from workloads.options import OptionError, RunOptions, add_run_options, run_options
from workloads.shapes import layer_shapes


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code (2: an unsupported network)."""
    parser = argparse.ArgumentParser("python -m workloads.legacy.plan", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, help="the .npz to write")
    parser.add_argument("--without-dropout", action="store_true", help="to compare losses")
    add_run_options(parser)
    arguments = parser.parse_args(argv)
    try:
        write(run_options(arguments), arguments.file, dropout=not arguments.without_dropout)
    except (OptionError, NetworkError) as error:
        parser.error(str(error))
    return 0


def write(options: RunOptions, path: Path, *, dropout: bool = True) -> None:
    """Write the plan of a run to ``path``, ``.npz``.

    Arrays: ``plan``, JSON text (batch, steps, warm_up and the layers: kind, name and the fields of
    the description, and ``weight_shape`` of layers with weights); ``images`` (batch, C, H,
    W) float32, ``labels`` (batch,) int64; ``weight:NAME`` float32. Biases begin at 0. Without
    ``dropout`` its probabilities are 0. Raises :class:`OptionError` for networks that branch.
    """
    network = options.describe_network()
    if not dropout:
        network = network.without_dropout()
    batch = synthetic_batch(network, options.batch, options.seed)
    plan = {
        "network": options.network,
        "batch": options.batch,
        "steps": options.steps,
        "warm_up": options.warm_up,
        "layers": _layers(network),
    }
    weights = initial_weights(network, options.seed)
    arrays: dict[str, Any] = {f"weight:{name}": value for name, value in weights.items()}
    with path.open("wb") as file:
        np.savez(
            file,
            plan=np.array(json.dumps(plan)),
            images=batch.images,
            labels=batch.labels,
            **arrays,
        )


def _layers(network: Network) -> list[dict[str, object]]:
    if any(layer.inputs for layer in network.layers):
        raise OptionError(f"{network.name} branches, which a plan does not support: choose another")
    return [
        {"kind": type(shape.layer).__name__, **asdict(shape.layer), "weight_shape": shape.weight}
        for shape in layer_shapes(network)
    ]


if __name__ == "__main__":
    sys.exit(main())
