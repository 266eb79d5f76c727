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
from workloads.options import Device, OptionError, RunOptions, add_run_options, run_options
from workloads.pytorch.ranges import Ranges, make_marker, mark_layers
from workloads.pytorch.record import cuda_profiler, make_profiler, trace_once, write_trace
from workloads.pytorch.train import prepare, train


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code (2: options that cannot be served)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        options = run_options(arguments)
        _check(arguments)
        times = _run(options, arguments)
    except (OptionError, NetworkError) as error:
        parser.error(str(error))
    milliseconds = ", ".join(f"{time / 1e6:.2f}" for time in times)
    print(f"{options.network}, batch {options.batch}, {options.device}: {milliseconds} ms a step")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m workloads.pytorch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_options(parser)
    add = parser.add_argument_group("PyTorch and its recording").add_argument
    add("--ranges", type=Ranges, choices=list(Ranges), default=Ranges.NONE, help="around layers")
    add("--torchscript", action="store_true", help="run the network through torch.jit.trace")
    add("--trace", type=Path, metavar="FILE", help="record by torch.profiler: .json or .json.gz")
    add("--stack", action="store_true", help="with --trace: Python calls and nn.Module events")
    add("--cuda-profiler", action="store_true", help="for ncu and nsys: start after the warm-up")
    add("--manifest", type=Path, metavar="FILE", help="write the layers with their shapes as JSON")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    trace: Path | None = arguments.trace
    if arguments.stack and trace is None:
        raise OptionError("--stack is part of a recording; add --trace FILE")
    if arguments.cuda_profiler and (arguments.device is not Device.CUDA or trace is not None):
        raise OptionError("--cuda-profiler is for ncu and nsys on a GPU; leave it or --trace out")
    if arguments.torchscript and arguments.ranges is not Ranges.NONE:
        raise OptionError("--torchscript runs no hooks, so it goes with --ranges none only")
    if trace is not None and not trace.name.endswith((".json", ".json.gz")):
        raise OptionError(f"--trace {trace}: the name must end in .json or .json.gz")
    for file in (trace, arguments.manifest):
        if file is not None and not file.parent.is_dir():
            raise OptionError(f"{file}: there is no directory {file.parent}")


def _run(options: RunOptions, arguments: argparse.Namespace) -> list[int]:
    model = prepare(options)
    marker = make_marker(arguments.ranges)
    if arguments.ranges is not Ranges.NONE:
        mark_layers(model, marker)
    if arguments.torchscript:
        model = trace_once(model, options)
    if arguments.manifest is not None:
        layer_manifest(options).write(arguments.manifest)
    if arguments.trace is None:
        done = cuda_profiler(options) if arguments.cuda_profiler else lambda: None
        return train(model, options, marker, done)
    with make_profiler(options, stack=arguments.stack) as profiler:
        times = train(model, options, marker, profiler.step)
    write_trace(profiler, arguments.trace)
    return times


if __name__ == "__main__":
    sys.exit(main())
