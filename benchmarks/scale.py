"""Inputs of extreme size: what each command costs on many ranks, steps, layers, names and depths.

Each input is one dimension of a trace grown far beyond what is recorded; the rest stays small. The
results stand in ``docs/reliability.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

from benchmarks.measure import FailedError, run
from benchmarks.source import SCRATCH

COMMANDS: Final = ("report", "info", "layers", "idle", "kernels")
LIMIT_S: Final = 60
LIMIT_BYTES: Final = 4 << 30
_HEAD: Final = (
    '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", '
    '"totalGlobalMem": 42505273344, "computeMajor": 8, "computeMinor": 0, "numSms": 108}], '
    '"baseTimeNanoseconds": 1700000000000000000, %s"traceEvents": [\n'
)


class Writer:
    """Writes the events of a Kineto trace; times are whole microseconds."""

    def __init__(self, file: TextIO, extra: str = "") -> None:
        """Write the head of the file, with the keys ``extra``."""
        self._file = file
        self._correlation = 0
        self._before = ""
        file.write(_HEAD % extra)

    def event(self, category: str, name: str, start: int, duration: int, more: str = "") -> None:
        """Write one event of the CPU thread 1."""
        self._file.write(
            f'{self._before}{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": 1, '
            f'"tid": 1, "ts": {start}, "dur": {duration}{more}}}'
        )
        self._before = ",\n"

    def launch(self, kernel: str, start: int) -> None:
        """Write a launch that takes 2 µs, and its kernel of 3 µs."""
        self._correlation += 1
        number = self._correlation
        self.event(
            "cuda_runtime", "cudaLaunchKernel", start, 2, f', "args": {{"correlation": {number}}}'
        )
        self._file.write(
            f',\n{{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, '
            f'"ts": {start + 4}, "dur": 3, "args": {{"correlation": {number}, "device": 0, '
            '"stream": 7, "context": 1, "grid": [1, 1, 1], "block": [128, 1, 1]}}'
        )

    def close(self) -> None:
        """Write the end of the file."""
        self._file.write("\n]}\n")


def steps(file: TextIO, count: int) -> None:
    """Write ``count`` steps of one operator and one kernel."""
    out = Writer(file)
    for number in range(count):
        at = 20 * number
        out.event("user_annotation", f"ProfilerStep#{number}", at, 18)
        out.event("cpu_op", "aten::mm", at + 2, 10)
        out.launch("ampere_sgemm_128x64_nn", at + 4)
    out.close()


def layers(file: TextIO, count: int) -> None:
    """Write one pass through ``count`` layers, three ranges deep."""
    out = Writer(file)
    at, number, group = 0, 0, 0
    while number < count:
        inner = min(100, count - number)
        out.event("python_function", f"nn.Module: Block_{group}", at, 20 * inner)
        for _ in range(inner):
            out.event("python_function", f"nn.Module: Linear_{number}", at + 1, 18)
            out.event("cpu_op", "aten::addmm", at + 2, 12)
            out.launch("ampere_sgemm_128x64_nn", at + 4)
            at += 20
            number += 1
        group += 1
    out.close()


def names(file: TextIO, count: int) -> None:
    """Write kernels with ``count`` different names, as of a compiler that numbers them."""
    out = Writer(file)
    stems = ("triton_poi_fused_add_relu_{}", "void gemm_kernel<{}, float>(int)", "fusion_{}")
    for number in range(count):
        out.event("cpu_op", "aten::mm", 20 * number, 12)
        out.launch(stems[number % len(stems)].format(number), 20 * number + 2)
    out.close()


def depth(file: TextIO, count: int) -> None:
    """Write ``count`` ranges nested in each other, with a kernel in the innermost."""
    out = Writer(file)
    for number in range(count):
        out.event("user_annotation", f"level {number}", number, 2 * (count - number) + 20)
    out.event("cpu_op", "aten::mm", count + 1, 12)
    out.launch("ampere_sgemm_128x64_nn", count + 2)
    out.close()


def depth_of_operators(file: TextIO, count: int) -> None:
    """Write ``count`` operators nested in each other, with a kernel in the innermost."""
    out = Writer(file)
    for number in range(count):
        out.event("cpu_op", f"aten::op{number % 7}", number, 2 * (count - number) + 20)
    out.launch("ampere_sgemm_128x64_nn", count + 2)
    out.close()


def rank(file: TextIO, number: int, world: int) -> None:
    """Write one of ``world`` ranks, with three steps."""
    out = Writer(file, f'"distributedInfo": {{"rank": {number}, "world_size": {world}}}, ')
    for step in range(3):
        at = 60 * step
        out.event("user_annotation", f"ProfilerStep#{step}", at, 58)
        for i in range(2):
            out.event("cpu_op", "aten::mm", at + 2 + 20 * i, 10)
            out.launch("ampere_sgemm_128x64_nn", at + 4 + 20 * i)
        out.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 44)
    out.close()


Write = Callable[[TextIO, int], None]
FILES: Final[dict[str, tuple[Write, int]]] = {
    "steps": (steps, 1_000_000),
    "layers": (layers, 100_000),
    "kernel names": (names, 200_000),
    "nested ranges": (depth, 20_000),
    "nested operators": (depth_of_operators, 20_000),
}
RANKS: Final = 10_000


def write(name: str, count: int, folder: Path) -> Path:
    """Return the input ``name`` of ``count``, written into ``folder`` unless it is there."""
    path = folder / f"{name.replace(' ', '-')}-{count}"
    if name == "ranks":
        return _ranks(path, count)
    path = path.with_suffix(".json")
    if not path.exists():
        unfinished = path.with_suffix(".part")
        with unfinished.open("w", encoding="utf-8") as file:
            FILES[name][0](file, count)
        unfinished.rename(path)
    return path


def _ranks(path: Path, count: int) -> Path:
    if not path.exists():
        unfinished = path.with_suffix(".part")
        unfinished.mkdir(exist_ok=True)
        for number in range(count):
            with (unfinished / f"rank{number}.json").open("w", encoding="utf-8") as file:
                rank(file, number, count)
        unfinished.rename(path)
    return path


def measured(name: str, count: int, folder: Path, commands: tuple[str, ...]) -> Iterator[str]:
    """Yield a row of the table for each of ``commands``."""
    path = write(name, count, folder)
    for command in commands:
        try:
            cost = run([sys.executable, "-m", "traceana", command, path], limit_s=10 * LIMIT_S)
        except FailedError as error:
            yield f"| {count:,} {name} | {command} | {error} | | |"
            continue
        met = cost.wall_s <= LIMIT_S and cost.peak_bytes <= LIMIT_BYTES
        yield (
            f"| {count:,} {name} | `{command}` | {cost.wall_s:.1f} | "
            f"{cost.user_s + cost.system_s:.1f} | {cost.peak_bytes / 1e6:,.0f} | "
            f"{'yes' if met else '**no**'} |"
        )


def main() -> None:
    """Write the inputs, run the commands on them and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=main.__doc__)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    parser.add_argument("--only", action="append", choices=[*FILES, "ranks"], help="one input")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="one command")
    parser.add_argument("--divide", type=int, default=1, help="make the inputs this much smaller")
    options = parser.parse_args()
    counts = {**{name: count for name, (_, count) in FILES.items()}, "ranks": RANKS}
    print("| input | command | seconds | CPU seconds | peak MB | within 60 s and 4 GB |")
    print("|---|---|---:|---:|---:|---|", flush=True)
    options.scratch.mkdir(parents=True, exist_ok=True)
    for name in options.only or counts:
        count = max(1, counts[name] // options.divide)
        for row in measured(name, count, options.scratch, tuple(options.command or COMMANDS)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
