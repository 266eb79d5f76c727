"""Shared by the scripts of the old frameworks; runs under Python 3.6."""

import argparse
import json
import sys
import time
from typing import Any, Callable, NoReturn, Optional

import numpy as np

LEARNING_RATE = 1e-3
MOMENTUM = 0.9


class Case:
    """A plan of ``workloads.legacy.plan``: ``layers`` (dicts), ``images``, ``labels``, weights."""

    def __init__(self, path: str) -> None:
        found = np.load(path)
        plan = json.loads(str(found["plan"]))
        self.network = plan["network"]
        self.batch, self.steps, self.warm_up = plan["batch"], plan["steps"], plan["warm_up"]
        self.layers = plan["layers"]
        self.images, self.labels = found["images"], found["labels"]
        self._weights = found

    def weight(self, layer: "dict[str, Any]") -> Any:
        """Return a layer's weight, (O, I / groups, kernel, kernel) or (out, in), float32."""
        return self._weights["weight:" + layer["name"]]

    @property
    def classes(self) -> int:
        """The number of outputs of the last layer."""
        return int(self.layers[-1]["out_features"])


def unknown(layer: "dict[str, Any]") -> NoReturn:
    """Exit with a message: this framework's script does not support the layer."""
    sys.exit(f"{layer['name']}: {layer['kind']} is not supported by this script")


def arguments(description: Optional[str], recording: Optional[str]) -> argparse.Namespace:
    """Return the parsed ``plan`` and, with its help text ``recording``, ``--trace``."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("plan", help="the .npz of workloads.legacy.plan")
    if recording:
        parser.add_argument("--trace", help=recording)
    return parser.parse_args()


def train(
    case: Case,
    step: Callable[[int], Any],
    start: Callable[[], Any] = lambda: None,
    stop: Callable[[], Any] = lambda: None,
) -> None:
    """Call ``step(number)``, which returns the loss, for each step of ``case``; print the times.

    ``start`` is called after the warm-up, ``stop`` at the end.
    """
    losses, times = [], []
    for number in range(-case.warm_up, case.steps):
        if number == 0:
            start()
        before = time.perf_counter()
        losses.append(float(step(number)))
        if number >= 0:
            times.append((time.perf_counter() - before) * 1e3)
    stop()
    print("losses: " + " ".join(f"{loss:.6f}" for loss in losses))
    took = ", ".join(f"{each:.2f}" for each in times)
    print(f"{case.network}, batch {case.batch}, cpu: {took} ms a step")
