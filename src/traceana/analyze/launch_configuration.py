"""Grid, block, registers and shared memory of kernels, and what follows: occupancy, waves, tail.

The arithmetic is that of NVIDIA's occupancy calculator (cuda_occupancy.h): a multiprocessor holds
as many blocks as its warps, registers, shared memory and block slots allow.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import polars as pl
import rtoml

from traceana.table import BYTES, COUNT, RATIO, SHARE, TEXT, Column
from traceana.timeline.work import kernels_of
from traceana.trace.work import SOURCE

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = (
    Column(
        "configurations",
        COUNT,
        "distinct launch configurations: grid, block, registers and shared memory. The next eight "
        "columns are of the one with most time; null where not recorded",
    ),
    Column("grid", TEXT, "blocks by x, y and z, without trailing 1: `320`, `32x8`"),
    Column("block", TEXT, "threads by x, y and z, likewise"),
    Column("registers", COUNT, "registers per thread"),
    Column(
        "shared_memory",
        BYTES,
        "shared memory per block, static and dynamic",
        scale="memory of a block",
    ),
    Column(
        "theoretical_occupancy",
        SHARE,
        "warps that a multiprocessor can hold at once, limited by registers, shared memory and "
        "block size, over its maximum; NVIDIA devices of a known compute capability",
    ),
    Column(
        "estimated_occupancy",
        SHARE,
        "the same, less where the grid has fewer blocks than the device can hold: Kineto's `est. "
        "achieved occupancy %`, which Kineto records as 0 above 48 KiB of shared memory, in whole "
        "warps",
    ),
    Column("waves", RATIO, "blocks over the blocks that the device can hold at once"),
    Column(
        "tail_share",
        SHARE,
        "part of the block slots without a block in the last wave, over all waves: 1 - waves / "
        "waves rounded up",
        title="tail",
    ),
)
_AXES: Final = "xyz"
_SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in _AXES)
_CONFIGURATION: Final = (*_SIZES, "registers", "shared_memory")
_WARP: Final = 32
_REGISTERS: Final = 65_536
"""Of a multiprocessor."""
_PARTITIONS: Final = 4
"""Parts of a multiprocessor; a warp has its registers in one."""
_REGISTERS_AT_ONCE: Final = 256
"""Granularity of the registers of a warp."""
_SHARED_AT_ONCE: Final = 256
"""Granularity of shared memory in bytes, where the table has none."""
_LIMITS: Final = {
    "compute_capability": pl.String,
    "most_warps": pl.Int64,
    "most_blocks": pl.Int64,
    "most_shared": pl.Int64,
    "reserved": pl.Int64,
    "granularity": pl.Int64,
}


def launch_configurations(trace: Trace) -> pl.DataFrame:
    """Return one row per name and class of the kernels, with :data:`COLUMNS`.

    A row has the launch configuration with most time; the first by grid and block of equal ones.
    """
    keys = [*SOURCE, "rank", "device", *_CONFIGURATION]
    launched = kernels_of(trace, *keys, "duration").drop_nulls("grid_x")
    distinct = launched.group_by(keys).agg(pl.col("duration").sum())
    chosen = (
        distinct.group_by(*SOURCE, *_CONFIGURATION)
        .agg(pl.col("duration").sum(), pl.col("rank", "device").first())
        .with_columns(pl.len().over(SOURCE).cast(pl.Int64).alias("configurations"))
        .sort("duration", *_CONFIGURATION, descending=[True, *[False] * len(_CONFIGURATION)])
        .unique(SOURCE, keep="first")
    )
    of_devices = (
        trace.tables.devices.filter(vendor="NVIDIA")
        .select("rank", "device", "compute_capability", "multiprocessors")
        .unique(["rank", "device"], keep="first")
        .with_columns(pl.col("compute_capability").cast(pl.String))
        .join(_limits(), on="compute_capability")
    )
    rows = chosen.join(of_devices, on=["rank", "device"], how="left", nulls_equal=True)
    blocks = pl.col("blocks")
    held = pl.col("active") * pl.col("multiprocessors").cast(pl.Int64)
    warp_share = pl.col("warps") / pl.col("most_warps")
    return (
        rows.with_columns(_product("grid").alias("blocks"), _warps().alias("warps"))
        .with_columns(_active_blocks().alias("active"))
        .with_columns((blocks / held).alias("waves"))
        .select(
            *SOURCE,
            "configurations",
            _written("grid").alias("grid"),
            _written("block").alias("block"),
            pl.col("registers", "shared_memory").cast(pl.Int64),
            (pl.col("active") * warp_share).alias("theoretical_occupancy"),
            (pl.col("waves").clip(upper_bound=1) * pl.col("active") * warp_share).alias(
                "estimated_occupancy"
            ),
            "waves",
            (1 - pl.col("waves") / pl.col("waves").ceil()).alias("tail_share"),
        )
    )


def _active_blocks() -> pl.Expr:
    """Return the blocks that a multiprocessor holds at once; null where not known."""
    shared, registers, warps = pl.col("shared_memory"), pl.col("registers"), pl.col("warps")
    of_warp = _ceiling(registers.cast(pl.Int64) * _WARP, _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    of_block = shared + pl.col("reserved")
    of_block = _ceiling(of_block, pl.col("granularity")) * pl.col("granularity")
    by_registers = _REGISTERS // _PARTITIONS // of_warp * _PARTITIONS // warps
    # Division by 0 is null: without registers or shared memory, these are no limit.
    active = pl.min_horizontal(
        pl.col("most_warps") // warps,
        "most_blocks",
        by_registers,
        pl.col("most_shared") // of_block,
    )
    known = pl.all_horizontal(
        column.is_not_null() for column in (shared, registers, pl.col("most_warps"))
    )
    return pl.when(known & (active > 0)).then(active)


def _warps() -> pl.Expr:
    return _ceiling(_product("block"), _WARP)


def _product(what: str) -> pl.Expr:
    x, y, z = (pl.col(f"{what}_{axis}").cast(pl.Int64) for axis in _AXES)
    return x * y * z


def _ceiling(amount: pl.Expr, unit: pl.Expr | int) -> pl.Expr:
    return (amount + unit - 1) // unit


def _written(what: str) -> pl.Expr:
    sizes = pl.concat_str([pl.col(f"{what}_{axis}") for axis in _AXES], separator="x")
    return sizes.str.replace(r"(?:x1)+$", "")


@cache
def _limits() -> pl.DataFrame:
    """Return the content of ``occupancy.toml``, a row a compute capability."""
    text = (resources.files("traceana.analyze") / "occupancy.toml").read_text(encoding="utf-8")
    return pl.DataFrame(
        [
            (
                *(version, entry["warps"], entry["blocks"], entry["shared_memory"]),
                *(entry.get("reserved", 0), entry.get("granularity", _SHARED_AT_ONCE)),
            )
            for entry in rtoml.loads(text)["capability"]
            for version in entry["versions"]
        ],
        schema=_LIMITS,
        orient="row",
    )
