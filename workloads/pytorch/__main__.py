"""Train a network for a few steps, under torch.profiler or with NVTX ranges for nsys.

python -m workloads.pytorch --batch 8 --trace alexnet.json.gz --stack
nsys profile --trace=nvtx python -m workloads.pytorch --ranges nvtx
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workloads.command import add_output_options, carry_out
from workloads.options import Ranges, RunOptions, add_run_options
from workloads.step_times import StepTimes
from workloads.support import Framework


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code (2: invalid options)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    return carry_out(
        parser, arguments, Framework.PYTORCH, lambda options: _trained(options, arguments)
    )


def _trained(options: RunOptions, arguments: argparse.Namespace) -> StepTimes:
    # PyTorch is imported once the options hold: it takes longer than to refuse them.
    from workloads.pytorch.run import Recording, run

    recording = Recording(
        ranges=arguments.ranges,
        trace=arguments.trace,
        stack=arguments.stack,
        forward_only=arguments.forward_only,
        fused_optimizer=arguments.fused_optimizer,
        torchscript=arguments.torchscript,
        cuda_profiler=arguments.cuda_profiler,
        cuda_graph=arguments.cuda_graph,
    )
    return run(options, recording)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m workloads.pytorch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_options(parser)
    add = parser.add_argument_group("PyTorch and recording").add_argument
    add("--ranges", type=Ranges, choices=list(Ranges), default=Ranges.NONE, help="around layers")
    add("--forward-only", action="store_true", help="with --ranges: forward pass only")
    add("--fused-optimizer", action="store_true", help="one operator for all parameters")
    add("--cuda-graph", action="store_true", help="the step, but for the copies, as one CUDA graph")
    add("--torchscript", action="store_true", help="run the network through torch.jit.trace")
    add("--trace", type=Path, metavar="FILE", help="record by torch.profiler: .json or .json.gz")
    add("--stack", action="store_true", help="with --trace: Python calls and nn.Module events")
    add("--cuda-profiler", action="store_true", help="for ncu and nsys: start after the warm-up")
    add_output_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
