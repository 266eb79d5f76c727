"""Options of a run, shared by all frameworks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from workloads.network import Network
from workloads.networks import NETWORKS


class OptionError(ValueError):
    """Options that contradict each other or that this machine does not support."""


class Device(StrEnum):
    """Device on which the network is trained."""

    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """Precision of products; weights stay float32.

    ``fp32`` forbids TF32, ``tf32`` allows it, the others are the framework's mixed precision.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    AMP_BF16 = "amp-bf16"
    AMP_FP16 = "amp-fp16"


class Layout(StrEnum):
    """The order of an image's axes in memory."""

    NCHW = "nchw"
    NHWC = "nhwc"


class Algorithms(StrEnum):
    """Selection of convolution algorithms on a GPU.

    The framework's default; the library's heuristic; the fastest in a benchmark; only deterministic
    ones.
    """

    DEFAULT = "default"
    HEURISTIC = "heuristic"
    BENCHMARK = "benchmark"
    DETERMINISTIC = "deterministic"


class Epilogue(StrEnum):
    """Whether bias and ReLU are fused with the convolution before them or separate operations."""

    DEFAULT = "default"
    SEPARATE = "separate"
    FUSED = "fused"


class Ranges(StrEnum):
    """Recorder of ranges around layers, in PyTorch."""

    NONE = "none"
    RECORD_FUNCTION = "record-function"
    NVTX = "nvtx"


class HostMemory(StrEnum):
    """Host memory of the device's input.

    ``per-operator``: the output of each layer is copied to the host and back.
    """

    PAGEABLE = "pageable"
    PINNED = "pinned"
    PER_OPERATOR = "per-operator"


@dataclass(frozen=True)
class RunOptions:
    """One training run. Raises :class:`OptionError` when options contradict each other.

    None is the paper's value for ``image_size`` and ``classes``, the framework's default for
    ``layout``, ``compile`` and ``threads``. ``batch`` is that of all ``processes`` together.
    """

    network: str = "alexnet"
    batch: int = 8
    steps: int = 3
    warm_up: int = 2
    image_size: int | None = None
    width_divisor: int = 1
    classes: int | None = None
    device: Device = Device.CPU
    precision: Precision = Precision.FP32
    layout: Layout | None = None
    algorithms: Algorithms = Algorithms.DEFAULT
    epilogue: Epilogue = Epilogue.DEFAULT
    compile: bool | None = None
    first_data_gradient: bool = False
    host_memory: HostMemory = HostMemory.PAGEABLE
    processes: int = 1
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = ("batch", "steps", "classes", "width_divisor", "image_size", "processes", "threads")
        for name in sizes:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if self.warm_up < 0 or self.seed < 0:
            raise OptionError("--warm-up and --seed cannot be negative")
        if self.network not in NETWORKS:
            raise OptionError(f"no network {self.network!r}: choose from {', '.join(NETWORKS)}")
        if self.batch % self.processes:
            raise OptionError(
                f"--batch {self.batch} is not divisible by --processes {self.processes}: give a "
                "multiple"
            )
        if self.device is Device.CPU:
            for given, option in (
                (self.precision is Precision.TF32, "--precision tf32"),
                (self.algorithms is not Algorithms.DEFAULT, f"--algorithms {self.algorithms}"),
                (self.host_memory is HostMemory.PINNED, "--host-memory pinned"),
            ):
                if given:
                    raise OptionError(f"{option} needs a GPU: add --device cuda or leave it out")

    @property
    def local_batch(self) -> int:
        """Images per step of each process."""
        return self.batch // self.processes

    def describe_network(self) -> Network:
        """Return the network at the requested size; raises :class:`NetworkError` if impossible."""
        return NETWORKS[self.network](
            image_size=self.image_size, width_divisor=self.width_divisor, classes=self.classes
        )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add an option to ``parser`` for each field of :class:`RunOptions`."""
    default = RunOptions()
    group = parser.add_argument_group("run")
    add = group.add_argument

    def choice(name: str, kind: type[StrEnum], text: str) -> None:
        value = getattr(default, name.replace("-", "_"))
        add(f"--{name}", type=kind, choices=list(kind), default=value, help=text)

    add("--network", choices=list(NETWORKS), default=default.network)
    add("--batch", type=int, default=default.batch, help="images per step (%(default)s)")
    add("--steps", type=int, default=default.steps, help="training steps (%(default)s)")
    add("--warm-up", type=int, default=default.warm_up, help="warm-up steps (%(default)s)")
    add("--image-size", type=int, help="image side in pixels (the paper's)")
    add("--width-divisor", type=int, default=1, help="divisor of all layer widths")
    add("--classes", type=int, help="outputs (the paper's)")
    choice("device", Device, "(%(default)s)")
    choice("precision", Precision, "of products; weights are float32 (%(default)s)")
    choice("layout", Layout, "of images in memory (the framework's)")
    choice("algorithms", Algorithms, "selection of convolution algorithms (%(default)s)")
    choice("epilogue", Epilogue, "bias and ReLU fused or separate")
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="torch.compile, XLA (default: on in JAX, off in the others)",
    )
    add(
        "--first-data-gradient",
        action=argparse.BooleanOptionalAction,
        default=default.first_data_gradient,
        help="compute the gradient of the images, which training does not need",
    )
    choice("host-memory", HostMemory, "host memory of the device's input (%(default)s)")
    add("--processes", type=int, default=1, help="data-parallel processes (%(default)s)")
    add("--threads", type=int, help="CPU threads within an operator (the framework's default)")
    add("--seed", type=int, default=default.seed, help="seed of weights and images (%(default)s)")


def parse_run_options(words: Sequence[str]) -> RunOptions:
    """Return the options of a run in a command line, which may have other options."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_run_options(parser)
    return run_options(parser.parse_known_args(words)[0])


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """Return the options that :func:`add_run_options` parsed; raises :class:`OptionError`."""
    return RunOptions(
        **{field.name: getattr(arguments, field.name) for field in fields(RunOptions)}
    )
