"""Train a network for a few steps, under torch.profiler or with NVTX ranges for nsys.

python -m workloads.pytorch --batch 8 --trace alexnet.json.gz --stack
nsys profile --trace=nvtx python -m workloads.pytorch --ranges nvtx
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workloads.manifest import layer_manifest
from workloads.network import NetworkError
from workloads.options import OptionError, add_run_options, run_options
from workloads.profiled import summary
from workloads.pytorch.ranges import Ranges
from workloads.pytorch.run import Recording, run
from workloads.support import Framework, served


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code (2: options that cannot be served)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    manifest: Path | None = arguments.manifest
    try:
        if manifest is not None and not manifest.parent.is_dir():
            raise OptionError(f"{manifest}: there is no directory {manifest.parent}")
        options = served(run_options(arguments), Framework.PYTORCH)
        recording = Recording(
            ranges=arguments.ranges,
            trace=arguments.trace,
            stack=arguments.stack,
            forward_only=arguments.forward_only,
            fused_optimizer=arguments.fused_optimizer,
            torchscript=arguments.torchscript,
            cuda_profiler=arguments.cuda_profiler,
        )
        times = run(options, recording)
    except (OptionError, NetworkError) as error:
        parser.error(str(error))
    if manifest is not None:
        layer_manifest(options).write(manifest)
    print(summary(options, times))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m workloads.pytorch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_options(parser)
    add = parser.add_argument_group("PyTorch and its recording").add_argument
    add("--ranges", type=Ranges, choices=list(Ranges), default=Ranges.NONE, help="around layers")
    add("--forward-only", action="store_true", help="with --ranges: none in the backward pass")
    add("--fused-optimizer", action="store_true", help="one operator for all parameters")
    add("--torchscript", action="store_true", help="run the network through torch.jit.trace")
    add("--trace", type=Path, metavar="FILE", help="record by torch.profiler: .json or .json.gz")
    add("--stack", action="store_true", help="with --trace: Python calls and nn.Module events")
    add("--cuda-profiler", action="store_true", help="for ncu and nsys: start after the warm-up")
    add("--manifest", type=Path, metavar="FILE", help="write the layers with their shapes as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
