"""Prints FLOPs that nvprof counted beside the formulas', for transposed convolutions.

The formulas count what an algorithm needs; ``MODELS`` count what cuDNN 7's kernels execute for it:
whole tiles of padded operands, and transforms again for each block of filters.

python -m tools.counted_flops FILE…

Each file is what ``nvprof --metrics flop_count_sp --csv`` printed of one layer of the generator of
which ``SHAPES`` are the layers; its name contains ``l{layer}_bs{batch}``. A transposed convolution
is the data gradient of the convolution that has its output as input.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
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

    @property
    def made(self) -> int:
        """The extent of the result."""
        return (self.extent - 1) * self.stride + self.window

    @property
    def written(self) -> str:
        """Channels and extents from input to result, the window and the stride."""
        before, after = (f"{one}x{one}" for one in (self.extent, self.made))
        channels = f"{self.inputs}x{before} to {self.outputs}x{after}"
        return f"{channels}, {self.window}x{self.window}/{self.stride}"

    def convolution(self, batch: int) -> Convolution:
        """Return the convolution of which it is the data gradient."""
        return Convolution(
            batch=batch,
            in_channels=self.outputs,
            out_channels=self.inputs,
            window=(self.window, self.window),
            output=(self.extent, self.extent),
            input=(self.made, self.made),
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

Model = Callable[[Shape, int, tuple[int, ...]], int | None]
"""FLOPs of a kernel for a layer and batch; the numbers are those in its name."""


def _padded(extent: int, tile: int) -> int:
    return ceil(extent / tile) * tile


def tiled(rows: int, columns: int, depth: int, tile: tuple[int, ...]) -> int:
    """Return the FLOPs of a matrix product that executes all of each ``tile``.

    Every element of a tile is a sum of ``depth`` products, multiplied with alpha.
    """
    # The longer side of the tile is along the images.
    height, width = sorted(tile)
    return (2 * depth + 1) * _padded(rows, height) * _padded(columns, width)


def _implicit_gemm(shape: Shape, batch: int, tile: tuple[int, ...]) -> int:
    depth = shape.inputs * shape.window**2
    return tiled(shape.outputs, batch * shape.made**2, depth, tile)


def _nonfused_product(shape: Shape, batch: int, tile: tuple[int, ...]) -> int:
    """One GEMM for each of the 36 points of a tile of F(4x4, 3x3)."""
    return 36 * tiled(shape.outputs, batch * ceil(shape.made / 4) ** 2, shape.inputs, tile)


def _nonfused_filter(shape: Shape, _batch: int, _: tuple[int, ...]) -> int:
    return 81 * shape.inputs * shape.outputs


def _nonfused_data(shape: Shape, batch: int, _: tuple[int, ...]) -> int | None:
    """Images by 16; the count of images of several tiles is not known."""
    return None if shape.made > 4 else 2_040 * _padded(batch, 16) * shape.inputs


def _nonfused_result(shape: Shape, batch: int, _: tuple[int, ...]) -> int | None:
    """As of the data, and each element of the result times alpha, plus beta times the old one."""
    if shape.made > 4:
        return None
    return shape.outputs * (3_058 * _padded(batch, 16) + 4 * batch * shape.made**2)


def _fused(shape: Shape, batch: int, block: tuple[int, ...]) -> int:
    """F(2x2, 3x3): blocks of 4 x 8 tiles; the data are transformed for each 32 filters."""
    across = ceil(shape.made / 2)
    tiles = batch * _padded(across, block[0]) * _padded(across, block[1])
    data = (24 + 2 * 8) * tiles * shape.inputs * ceil(shape.outputs / 32)
    results = (24 + 4) * tiles * shape.outputs
    return 2 * 16 * tiles * shape.inputs * shape.outputs + data + results


def _fused_filter(shape: Shape, _batch: int, _: tuple[int, ...]) -> int:
    return 58 * shape.inputs * shape.outputs


def _algo_0(shape: Shape, batch: int, tile: tuple[int, ...]) -> int:
    """A product for each image, of its positions and the windows, each element times alpha."""
    rows, columns = shape.outputs * shape.window**2, shape.extent**2
    padded = _padded(rows, 2 ** tile[0]) * _padded(columns, 2 ** tile[1])
    return batch * (2 * shape.inputs * padded + rows * columns)


def _algo_1(shape: Shape, batch: int, tile: tuple[int, ...]) -> int:
    """As ALGO_0, each element added to the result, which is scaled, channels in fours."""
    rows, columns = shape.outputs * shape.window**2, shape.extent**2
    padded = _padded(rows, 2 ** tile[0]) * _padded(columns, 2 ** tile[1])
    scaled = _padded(shape.outputs, 4) * shape.made**2
    return batch * (2 * shape.inputs * padded + 2 * scaled + rows * columns)


def _tiles(shape: Shape) -> int:
    """Tiles of 32 x 32 that cover the result, whose input has zeros between its elements."""
    return ceil(shape.made / (33 - shape.window)) ** 2


def _transforms(shape: Shape, batch: int, number: tuple[int, ...]) -> int:
    """Real transforms of 32 x 32; those of filters leave out the zeros (number: their extent)."""
    if number[0]:
        return 19_120 * shape.inputs * shape.outputs if number[0] == shape.window else 0
    return 22_576 * _tiles(shape) * batch * shape.inputs


def _complex_product(shape: Shape, batch: int, _: tuple[int, ...]) -> int:
    """A product for each point of a spectrum, with three real products for a complex one."""
    points = 32 * 17 * _tiles(shape)
    elements = _padded(batch, 64) * _padded(shape.outputs, 32)
    return points * elements * (12 * shape.inputs + 21)


def _back(shape: Shape, batch: int, _: tuple[int, ...]) -> int:
    planes = batch * shape.outputs
    return planes * (_tiles(shape) * 44_173 // 2 + shape.made**2)


MODELS: Final[Mapping[str, Model]] = {
    r"scudnn_(\d+)x(\d+)_": _implicit_gemm,
    r"maxwell_sgemm_(\d+)x(\d+)_": _nonfused_product,
    r"winogradForwardFilter4x4": _nonfused_filter,
    r"winogradForwardData4x4": _nonfused_data,
    r"winogradForwardOutput4x4": _nonfused_result,
    r"winograd3x3Kernel<float, float, int=1, int=(\d+), int=(\d+)": _fused,
    r"generateWinogradTilesKernel": _fused_filter,
    r"dgrad_engine<float, int=\d+, int=(\d+), int=(\d+)": _algo_0,
    r"dgrad2d_alg1_1<float, int=\d+, int=(\d+), int=(\d+)": _algo_1,
    r"fft2d_r2c_32x32<float, bool=[01], unsigned int=(\d+)": _transforms,
    r"gcgemm_(\d+)x(\d+)_": _complex_product,
    r"fft2d_c2r_32x32": _back,
}
"""By a pattern of the kernel's name. The counts of transforms are those of the kernels' code, which
the counter shows; those of Winograd's nonfused data and results are known where one tile covers an
image: one size of the result is not enough to tell how they depend on it."""


def modelled(shape: Shape, batch: int, name: str) -> int | None:
    """Return what the kernel of ``name`` executes, None without a model."""
    for pattern, model in MODELS.items():
        if found := re.search(pattern, name):
            return model(shape, batch, tuple(int(number) for number in found.groups()))
    return None


def rows(path: Path) -> list[list[str]]:
    """Return the rows of the table for one file: the convolution, and its kernels."""
    named = _NAME.search(path.name)
    if named is None:
        return []
    layer, batch = map(int, named.groups())
    shape = SHAPES[layer]
    # A row is the mean of its calls.
    trace = traceana.open(path)
    kernels = trace.tables.counters.filter(pl.col("fp32_flops") > 0)
    own = kernels.filter(pl.col("name").str.contains("|".join(MODELS)))
    counts = own.select("name", pl.col("fp32_flops") * pl.col("launches").fill_null(1)).rows()
    (algorithm,) = trace.kernels().frame["algorithm"].drop_nulls().unique()
    convolution = shape.convolution(batch)
    formula = executed(convolution, algorithm, "dgrad")
    needed = formula.flops if isinstance(formula, Executed) else None
    counted = sum(count for _, count in counts)
    direct = f"{2 * convolution.macs:,}"
    written = f"{needed:,}" if needed else "no formula"
    table = [[shape.written, str(batch), algorithm, direct, written]]
    models = [modelled(shape, batch, name) for name, _ in counts]
    whole = None if None in models else sum(filter(None, models))
    table[0] += [*_beside(whole, counted)]
    for (name, count), model in zip(counts, models, strict=True):
        brief = re.sub(r"^void |cudnn::|detail::|winograd(_nonfused)?::|<.*", "", name)
        table.append(["", "", brief, "", "", *_beside(model, count)])
    return table


def _beside(model: int | None, counted: int) -> list[str]:
    if model is None:
        return ["", f"{counted:,}", ""]
    return [f"{model:,}", f"{counted:,}", f"{counted / model:.4f}"]


_TITLES: Final = (
    *("shape", "batch", "algorithm, kernels"),
    *("direct", "needed", "modelled", "counted", "of modelled"),
)


def main() -> None:
    """Print the table of the files named on the command line."""
    print(f"| {' | '.join(_TITLES)} |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    for path in sorted(map(Path, sys.argv[1:]), key=lambda path: path.name):
        try:
            table = rows(path)
        except TraceanaError as error:
            print(f"{path}: {error}", file=sys.stderr)
            continue
        for row in table:
            print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
