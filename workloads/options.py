"""How a workload is run: the options that every framework has in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from workloads.network import Network
from workloads.networks import NETWORKS


class OptionError(ValueError):
    """Options that contradict each other or that this machine cannot serve."""


class Device(StrEnum):
    """Where the network is trained."""

    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """How numbers are multiplied; weights stay float32.

    ``fp32`` forbids TF32, ``tf32`` allows it, ``amp`` is the framework's mixed precision.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    AMP = "amp"


@dataclass(frozen=True)
class RunOptions:
    """One training run. Raises :class:`OptionError` when options contradict each other."""

    network: str = "alexnet"
    batch: int = 8
    steps: int = 3
    warm_up: int = 2
    image_size: int | None = None
    width_divisor: int = 1
    classes: int = 1000
    device: Device = Device.CPU
    precision: Precision = Precision.FP32
    channels_last: bool = False
    cudnn_benchmark: bool = False
    pin_memory: bool = False
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "classes", "width_divisor", "image_size", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if self.warm_up < 0 or self.seed < 0:
            raise OptionError("--warm-up and --seed cannot be negative")
        if self.network not in NETWORKS:
            raise OptionError(f"no network {self.network!r}; there are {', '.join(NETWORKS)}")
        if self.device is Device.CPU:
            for given, option in (
                (self.precision is Precision.TF32, "--precision tf32"),
                (self.cudnn_benchmark, "--cudnn-benchmark"),
                (self.pin_memory, "--pin-memory"),
            ):
                if given:
                    raise OptionError(f"{option} is for GPUs; add --device cuda or leave it out")

    def describe_network(self) -> Network:
        """The network at the size asked for; raises :class:`NetworkError` if there is none."""
        return NETWORKS[self.network](
            image_size=self.image_size, width_divisor=self.width_divisor, classes=self.classes
        )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` one option for each field of :class:`RunOptions`."""
    default = RunOptions()
    group = parser.add_argument_group("the run")
    add = group.add_argument
    add("--network", choices=list(NETWORKS), default=default.network)
    add("--batch", type=int, default=default.batch, help="images a step (%(default)s)")
    add("--steps", type=int, default=default.steps, help="training steps (%(default)s)")
    add("--warm-up", type=int, default=default.warm_up, help="steps before (%(default)s)")
    add("--image-size", type=int, help="side of the images in pixels (the paper's)")
    add("--width-divisor", type=int, default=1, help="make every layer so many times narrower")
    add("--classes", type=int, default=default.classes, help="outputs (%(default)s)")
    add("--device", type=Device, choices=list(Device), default=default.device)
    add("--precision", type=Precision, choices=list(Precision), default=default.precision)
    add("--channels-last", action="store_true", help="NHWC in memory instead of NCHW")
    add("--cudnn-benchmark", action="store_true", help="time the algorithms, take the fastest")
    add("--pin-memory", action="store_true", help="images in page-locked host memory")
    add("--threads", type=int, help="CPU threads within an operator (the framework's choice)")
    add("--seed", type=int, default=default.seed, help="of weights and images (%(default)s)")


def parse_run_options(words: Sequence[str]) -> RunOptions:
    """The options of a run in the words of a command line that may hold others too."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_run_options(parser)
    return run_options(parser.parse_known_args(words)[0])


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """The options that :func:`add_run_options` parsed; raises :class:`OptionError`."""
    return RunOptions(**{name: getattr(arguments, name) for name in RunOptions.__annotations__})
