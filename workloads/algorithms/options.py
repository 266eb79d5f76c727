"""The command line of ``python -m workloads.algorithms``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from workloads.algorithms.study import Direction
from workloads.networks import NETWORKS

DIRECTIONS: Final[tuple[Direction, ...]] = ("fprop", "dgrad", "wgrad")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser("python -m workloads.algorithms", description=description)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    add = made.add_argument
    add("--library", choices=("onednn", "cudnn"), required=True)
    add(
        "--library-file",
        type=Path,
        metavar="FILE",
        help="shared library (the installed one)",
    )
    add("--out", type=Path, metavar="FILE", required=True, help="JSON, see docs/studies.md")
    what = made.add_argument_group("measured convolutions").add_argument
    what("--network", choices=list(NETWORKS), help="convolutions of this network (alexnet)")
    what("--manifest", type=Path, metavar="FILE", help="convolutions of a layer manifest")
    what("--image-size", type=_positive, help="image side in pixels (the paper's)")
    what("--width-divisor", type=_positive, default=1, help="divisor of all layer widths")
    what("--layer", action="append", metavar="NAME", help="only this layer; may be repeated")
    what("--batch", type=_batches, default=(1, 2, 4, 8, 16), metavar="N,N…", help="(1,2,4,8,16)")
    what(
        "--direction",
        action="append",
        choices=DIRECTIONS,
        help="only this one; may be repeated",
    )
    how = made.add_argument_group("how").add_argument
    how("--repetitions", type=_positive, default=10, help="timed runs per algorithm (%(default)s)")
    how("--warm-up", type=_positive, default=1, help="runs before the timed ones (%(default)s)")
    how(
        *("--limit",),
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time limit of the timed runs of an algorithm, at least 3 runs (%(default)s)",
    )
    how(
        "--seconds", type=_seconds, help="time limit of the whole run: no algorithm starts after it"
    )
    how("--threads", type=_positive, help="oneDNN's threads (all)")
    how("--precision", choices=("fp32", "tf32"), default="fp32", help="tf32: cuDNN only (fp32)")
    how("--layout", choices=("nchw", "nhwc"), default="nchw", help="cuDNN only (nchw)")
    return made


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1: give a positive integer")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def _batches(text: str) -> tuple[int, ...]:
    return tuple(sorted({_positive(word) for word in text.split(",")}))
