"""Time every algorithm that a library has for a network's convolutions, with its workspace.

python -m workloads.algorithms --library onednn --network alexnet --batch 1,2,4 --out alexnet.json
python -m workloads.algorithms --library cudnn --network vgg16 --batch 64 --out vgg16.json
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from workloads.algorithms.accelerator import Cuda
from workloads.algorithms.cudnn import CuDNNBench
from workloads.algorithms.cudnn_api import PACKAGES as CUDNN_PACKAGES
from workloads.algorithms.cudnn_api import CuDNN, CuDNNError
from workloads.algorithms.layers import LayerError, convolutions, read_manifest
from workloads.algorithms.libraries import LibraryError, load
from workloads.algorithms.onednn import OneDNNBench
from workloads.algorithms.onednn_api import OneDNN, OneDNNError
from workloads.algorithms.options import DIRECTIONS, parser
from workloads.algorithms.run import Bench, Plan, Run
from workloads.algorithms.timing import Timing
from workloads.files import write_by_line
from workloads.manifest import layer_manifest
from workloads.network import NetworkError
from workloads.options import OptionError, RunOptions


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code (2: invalid options)."""
    reader = parser(__doc__)
    arguments = reader.parse_args(argv)
    out: Path = arguments.out
    try:
        if not out.parent.is_dir():
            raise OptionError(f"{out}: directory {out.parent} does not exist")
        manifest = _manifest(arguments)
        plan = Plan(
            network=manifest["network"],
            layers=convolutions(manifest, arguments.layer),
            directions=arguments.direction or DIRECTIONS,
            batches=arguments.batch,
            warm_up=arguments.warm_up,
            seconds=arguments.seconds,
        )
        run = Run(plan, _bench(arguments))
    except (OptionError, NetworkError, LayerError, LibraryError, OneDNNError, CuDNNError) as error:
        reader.error(str(error))
    code = 0
    # A run that is stopped (by timeout, for example) writes its measurements so far.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run.measure(print)
    except KeyboardInterrupt:
        run.ended, code = "interrupted", 130
    finally:
        signal.signal(signal.SIGTERM, before)
    write_by_line(out, run.study(), "layers", "measurements")
    rest = "" if run.ended is None else f"; incomplete: {run.ended}"
    print(f"{out}: {len(run.measurements)} measurements of {run.bench.device.name}{rest}")
    return code


def _manifest(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.manifest is None:
        options = RunOptions(
            network=arguments.network or "alexnet",
            image_size=arguments.image_size,
            width_divisor=arguments.width_divisor,
        )
        return layer_manifest(options)
    if arguments.network or arguments.image_size or arguments.width_divisor != 1:
        raise OptionError(
            "--manifest contains the network and its size: leave out --network and --image-size"
        )
    return read_manifest(arguments.manifest)


def _bench(arguments: argparse.Namespace) -> Bench:
    timing = Timing(arguments.warm_up, arguments.repetitions, round(arguments.limit * 1e9))
    file: Path | None = arguments.library_file
    if arguments.library == "onednn":
        if arguments.precision != "fp32" or arguments.layout != "nchw":
            raise OptionError("--precision and --layout need --library cudnn: leave them out")
        return OneDNNBench(OneDNN(file), timing, arguments.threads)
    if arguments.threads is not None:
        raise OptionError("--threads needs --library onednn: leave it out")
    accelerator = Cuda()
    library = load(file, CUDNN_PACKAGES, "cudnn", "install PyTorch with CUDA, which brings it")
    return CuDNNBench(CuDNN(library), accelerator, timing, arguments.precision, arguments.layout)


if __name__ == "__main__":
    sys.exit(main())
