"""Prints FLOPs that nvprof counted beside the formulas', for transposed convolutions.

python -m tools.counted_flops FILE…

Each file is what ``nvprof --metrics flop_count_sp --csv`` printed of one layer of the generator of
which ``SHAPES`` are the layers; its name contains ``l{layer}_bs{batch}``. A transposed convolution
is the data gradient of the convolution that has its output as input.
"""

from __future__ import annotations

import re
import sys
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

import traceana
from traceana.errors import TraceanaError
from traceana.flops.convolution import Convolution
from traceana.flops.executed import Executed, executed


class Shape(NamedTuple):
    """A transposed convolution without padding, of square images and windows."""

    inputs: int
    outputs: int
    extent: int
    window: int
    stride: int

    def convolution(self, batch: int) -> Convolution:
        """Return the convolution of which it is the data gradient."""
        made = (self.extent - 1) * self.stride + self.window
        return Convolution(
            batch=batch,
            in_channels=self.outputs,
            out_channels=self.inputs,
            window=(self.window, self.window),
            output=(self.extent, self.extent),
            input=(made, made),
            groups=1,
            stride=(self.stride, self.stride),
            dilation=(1, 1),
        )


SHAPES: Final = {
    1: Shape(128, 128, 1, 3, 1),
    2: Shape(128, 128, 3, 3, 1),
    3: Shape(128, 64, 5, 5, 1),
    4: Shape(64, 32, 9, 5, 2),
    5: Shape(32, 3, 21, 5, 2),
}
_NAME: Final = re.compile(r"l(\d)_bs(\d+)")
_TILE: Final = re.compile(r"_(\d+)x(\d+)_")
_POINTS: Final = 36
"""Products of a tile of F(4x4, 3x3), of which cuDNN makes as many GEMMs."""


def tiled(rows: int, columns: int, depth: int, name: str) -> int | None:
    """Return the FLOPs of a GEMM kernel whose ``name`` has its tile: all of each tile.

    Every element of a tile is a sum of ``depth`` products, multiplied with alpha.
    """
    found = _TILE.search(name)
    if found is None:
        return None
    # The longer side of the tile is along the images.
    height, width = sorted(map(int, found.groups()))
    return (2 * depth + 1) * _padded(rows, height) * _padded(columns, width)


def _padded(extent: int, tile: int) -> int:
    return ceil(extent / tile) * tile


def product(shape: Shape, batch: int, algorithm: str, name: str) -> int | None:
    """Return the FLOPs of the kernel that multiplies, None where it is no GEMM of a known tile."""
    made = (shape.extent - 1) * shape.stride + shape.window
    if algorithm == "implicit_precomp_gemm":
        return tiled(shape.outputs, batch * made**2, shape.inputs * shape.window**2, name)
    if algorithm == "winograd_nonfused":
        once = tiled(shape.outputs, batch * ceil(made / 4) ** 2, shape.inputs, name)
        return None if once is None else _POINTS * once
    return None


def rows(path: Path) -> list[str]:
    """Return the rows of the table for one file: the convolution, and its product by tiles."""
    named = _NAME.search(path.name)
    if named is None:
        return []
    layer, batch = map(int, named.groups())
    shape = SHAPES[layer]
    kernels = traceana.open(path).kernels().frame
    own = kernels.filter(pl.col("category").is_in(["conv", "gemm"]))
    (algorithm,) = own["algorithm"].drop_nulls().unique()
    counted = int(own["fp32_flops"].sum())
    conv = shape.convolution(batch)
    direct = 2 * conv.macs
    formula = executed(conv, algorithm, "dgrad")
    of_algorithm = formula.flops if isinstance(formula, Executed) else None
    cells = [layer, batch, algorithm, f"{direct:,}"]
    cells += [f"{of_algorithm:,}" if of_algorithm else "no formula", f"{counted:,}"]
    cells += [f"{counted / direct:.2f}"]
    cells += [f"{counted / of_algorithm:.2f}" if of_algorithm else ""]
    table = ["| " + " | ".join(map(str, cells)) + " |"]
    for name, count in own.select("name", "fp32_flops").iter_rows():
        model = product(shape, batch, algorithm, name)
        if model is not None:
            ratio = f"{count / model:.4f}"
            table.append(f"| | | {name} | | {model:,} | {int(count):,} | | {ratio} |")
    return table


def main() -> None:
    """Print the table of the files named on the command line."""
    print("| layer | batch | algorithm | direct | executed | counted | of direct | of executed |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    for path in sorted(map(Path, sys.argv[1:]), key=lambda path: path.name):
        try:
            lines = rows(path)
        except TraceanaError as error:
            print(f"{path}: {error}", file=sys.stderr)
            continue
        for line in lines:
            print(line)


if __name__ == "__main__":
    main()
