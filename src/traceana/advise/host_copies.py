"""Rules on copies over the host link: small, pageable, synchronous, slow or exposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.advise.gpu_idle import idle_for
from traceana.advise.rule import Change, Found, Value, rule
from traceana.settings import LARGE_COPY_BYTES, SLOW_COPY, SMALL_COPY_BYTES
from traceana.timeline.copies import HOST_DIRECTIONS

if TYPE_CHECKING:
    from traceana.advise.figures import Figures
    from traceana.analyze.transfers import Key

_NOT_SMALL: Final = (pl.col("mean_bytes") >= SMALL_COPY_BYTES).fill_null(value=True)
"""Small copies are limited by the call, and have their own rule."""
_SLOW: Final = (
    (pl.col("mean_bytes") >= LARGE_COPY_BYTES) & (pl.col("peak_share") < SLOW_COPY)
).fill_null(value=False)
"""So have large copies far below the peak of their link."""
_DOWNLOADS: Final = "copies to the host"


@rule(
    title="small copies",
    kind="estimate",
    sentence="{count} copies[ of {mean_bytes}][ of {mean_ns}] on average; {direction}"
    "[ at {bytes_per_s}][ (large copies: {large_bytes_per_s})][; exposed {exposed_ns}]",
    estimate="exposed time x (1 - bandwidth / bandwidth of large copies). Large copies are those "
    "of 1 MiB and more of the same direction in this trace; without any, the link's peak; with "
    "neither, all the exposed time.",
    caveat="The host's time per call comes on top. It shows as GPU idle time.",
    change=Change(
        pytorch="collate on the host and copy once (one .to(device)); keep scalars on the device "
        "(no .item(), .cpu() or print of losses every step)",
        tensorflow="keep operations on one device (tf.debugging.set_log_device_placement), batch "
        "the input before the copy, fetch metrics every N steps",
        jax="device_put one pytree of stacked arrays; no float(loss) in every step",
        native="pack small arrays into one buffer and copy it once; keep scalars on the device",
    ),
    variants={
        _DOWNLOADS: Change(
            pytorch="keep scalars on the device (no .item(), .cpu() or print of losses every "
            "step); stack results and copy them once",
            tensorflow="fetch metrics every N steps",
            jax="no float(loss) in every step; copy_to_host_async() of one stacked array",
            native="keep scalars on the device; pack results into one buffer and copy it once",
        )
    },
)
def small_copies(figures: Figures) -> Found | None:
    """Many small copies over the host link."""
    rows = _host_copies(figures, pl.col("small"))
    if rows.is_empty():
        return None
    rows = rows.join(_large_bandwidths(figures), on="direction", how="left").with_columns(
        pl.coalesce("large_bytes_per_s", "peak_bytes_per_s").alias("large_bytes_per_s")
    )
    reached = (pl.col("bytes_per_s") / pl.col("large_bytes_per_s")).clip(0, 1).fill_null(0)
    found = _copied(
        figures,
        _with_saving(rows, reached),
        ("mean_bytes", "direction", "bytes_per_s", "large_bytes_per_s"),
        ("bytes_per_s", "large_bytes_per_s", "blocking", "saving_ns"),
        saving="saving_ns",
        mean_bytes=int(rows["bytes"].sum()) // int(rows["count"].sum()),
        # Of copies without sizes: those of a printed summary.
        mean_ns=None,
    )
    return None if found is None else with_change_of(rows, found)


@rule(
    title="pageable copies",
    kind="estimate",
    sentence="{count} copies from or to pageable host memory; {direction}[ at {bytes_per_s}]"
    "[ ({peak_share} of the link's peak)]; exposed {exposed_ns}",
    estimate="all their exposed time. Copies from pinned memory are faster and can overlap with "
    "compute.",
    caveat="Pinning costs host time: pin buffers once, not in every step.",
    change=Change(
        pytorch="DataLoader(pin_memory=True) and batch.to(device, non_blocking=True)",
        tensorflow="tf.data's prefetch_to_device, or dataset.prefetch(AUTOTUNE) as the last stage",
        jax="put the next batch on the device before the step (flax.jax_utils."
        "prefetch_to_device, or jax.device_put)",
        native="cudaMallocHost or cudaHostRegister for the buffers, and cudaMemcpyAsync",
    ),
    variants={
        _DOWNLOADS: Change(
            pytorch="torch.empty(…, pin_memory=True).copy_(result, non_blocking=True) into a "
            "destination that is pinned once",
            tensorflow="fetch results every N steps",
            jax="copy_to_host_async() for results",
            native="cudaMallocHost for the destination, and cudaMemcpyAsync",
        )
    },
)
def pageable_copies(figures: Figures) -> Found | None:
    """Copies from or to pageable host memory."""
    pageable = pl.col("host_memory") == "pageable"
    found = _copied(
        figures,
        _host_copies(figures, pageable & _NOT_SMALL),
        ("bytes", "direction", "bytes_per_s", "peak_share"),
        ("bytes_per_s", "link", "peak_share", "blocking"),
    )
    if found is None:
        return None
    found = with_change_of(found.evidence, found)
    if _host_copies(figures, pageable & ~_NOT_SMALL).height:
        # The scenario is about all copies of pageable memory, the finding about large ones.
        return found
    return replace(found, scenario="pinned")


@rule(
    title="synchronous copies",
    kind="estimate",
    sentence="blocking copies[: {copies_count} calls][, exposed {exposed_ns}][; GPU idle "
    "{idle_ns} around them][, mostly in {culprit}]",
    estimate="the idle time with the cause copy, and the exposed time of copies by blocking calls.",
    caveat="Host code that needs the copied value has to wait for it, however it is copied.",
    change=Change(
        pytorch="pinned memory and .to(device, non_blocking=True); copy results to the host on a "
        "separate stream, an iteration later",
        tensorflow="prefetch to the device; fetch results every N steps",
        jax="jax.device_put before the step; copy_to_host_async() for results",
        native="cudaMemcpyAsync from and to pinned memory on a separate stream",
    ),
    variants={
        _DOWNLOADS: Change(
            pytorch="copy results with copy_(result, non_blocking=True) into pinned memory on a "
            "separate stream, and read them an iteration later; no .item() or .cpu() in the step",
            tensorflow="fetch results every N steps",
            jax="copy_to_host_async() for results, read a step later",
            native="cudaMemcpyAsync into pinned memory on a separate stream, and read the result "
            "an iteration later",
        )
    },
)
def synchronous_copies(figures: Figures) -> Found | None:
    """Copies by blocking calls, and the GPU idle time around them."""
    if figures.on_cpu:
        return None
    rows = _host_copies(figures, pl.col("synchronous") > 0, by="call")
    exposed = int(rows["exposed_ns"].sum())
    idle = figures.idle_ns("copy")
    found = idle_for(
        figures,
        "copy",
        more=exposed,
        idle_ns=figures.each(idle) if idle else None,
        exposed_ns=figures.each(exposed) if exposed else None,
        copies_count=figures.mean(int(rows["synchronous"].sum())) or None,
    )
    if found is None:
        return None
    if rows.is_empty():
        return with_change_of(_host_copies(figures, pl.lit(value=True)), found)
    evidence = rows.select(
        *("call", "direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns"),
        *("exposed_ns", "bytes_per_s", "synchronous"),
    )
    return with_change_of(rows, replace(found, evidence=evidence))


@rule(
    title="slow copies",
    kind="estimate",
    sentence="{count} copies of {mean_bytes} on average; {direction} at {bytes_per_s}, "
    "{peak_share} of the peak of {link}[; exposed {exposed_ns}]",
    estimate="exposed time x (1 - bandwidth / datasheet unidirectional peak of the link).",
    caveat="The slot may have fewer lanes or an older PCIe generation, and devices may share it: "
    "nvidia-smi -q shows the negotiated link.",
    change=Change(
        pytorch="pinned buffers, one process per GPU bound to its NUMA node (numactl), copies on "
        "a separate stream",
        tensorflow="bind each process to the NUMA node of its GPU, and prefetch to the device",
        jax="bind each process to the NUMA node of its GPU, and copy the next batch ahead",
        native="pinned buffers, one process per GPU bound to its NUMA node (numactl)",
    ),
)
def slow_copies(figures: Figures) -> Found | None:
    """Large copies far below the peak of their link."""
    rows = _host_copies(figures, (pl.col("host_memory") != "pageable") & _SLOW)
    return _copied(
        figures,
        _with_saving(rows, pl.col("peak_share")),
        ("mean_bytes", "direction", "bytes_per_s", "peak_share", "link"),
        ("bytes_per_s", "link", "peak_bytes_per_s", "peak_share", "saving_ns"),
        saving="saving_ns",
    )


@rule(
    title="exposed copies",
    kind="estimate",
    sentence="[exposed {exposed_ns} of ]{time_ns} copy time: {count} copies, {direction}"
    "[ of {mean_bytes} on average][ at {bytes_per_s}]; kernel time {kernel_ns}",
    estimate="all their exposed time, without small, pageable, blocking and slow copies: they have "
    "their own rules. Overlap with compute saves at most the kernel time.",
    caveat="A trace without steps includes the first copy of the weights, which happens once. "
    "Weights that exceed device memory have to be copied.",
    change=Change(
        pytorch="copy the next batch on a separate stream during compute (torch.cuda.Stream); "
        "keep weights and optimizer states on the device (no .to(device) or offload in the step)",
        tensorflow="prefetch_to_device as the last stage of the input pipeline; keep variables on "
        "the device, not under tf.device('CPU')",
        jax="keep parameters on the device between steps (donate_argnums), and jax.device_put "
        "the next batch during the current step",
        native="keep arrays on the device between iterations; copy on a separate stream "
        "during compute",
    ),
    variants={
        _DOWNLOADS: Change(
            pytorch="copy_(result, non_blocking=True) into pinned memory, on a stream of its own "
            "(torch.cuda.Stream); read the result one step later, after an event",
            tensorflow="fetch results every N steps; keep variables on the device, not under "
            "tf.device('CPU')",
            jax="copy_to_host_async() for results, read a step later; keep parameters on the "
            "device between steps",
            native="cudaMemcpyAsync into pinned memory on a stream of its own; read the result "
            "one iteration later, after an event",
        )
    },
    simulation="`overlapped-copies`, where the directions of these copies have no others; after "
    "`pinned` also of copies from pageable memory.",
)
def exposed_copies(figures: Figures) -> Found | None:
    """Copies over the host link that do not overlap with compute."""
    # Copies of pageable memory and by blocking calls cannot overlap with kernels launched later.
    # They have their own rules.
    others = (pl.col("host_memory") != "pageable") & (pl.col("kind") != "blocking")
    rows = _host_copies(figures, others & _NOT_SMALL & ~_SLOW)
    after = None
    if rows.is_empty():
        # From pinned memory they can overlap.
        rows = _host_copies(figures, (pl.col("host_memory") == "pageable") & _NOT_SMALL)
        after = "pageable_copies"
    found = _copied(
        figures,
        rows.sort("exposed_ns", descending=True, nulls_last=True),
        ("mean_bytes", "direction", "bytes_per_s", "time_ns"),
        ("bytes_per_s", "link", "peak_share", "blocking"),
        time_ns=figures.each(int(rows["time_ns"].sum())),
        kernel_ns=figures.each(int(figures.busy["kernel_ns"].sum())),
    )
    if found is None:
        return None
    found = with_change_of(rows, found)
    directions = rows["direction"].unique()
    every = _host_copies(figures, pl.col("direction").is_in(directions.implode()))
    # The scenario is about all copies of a direction, and not about migrations of unified memory.
    if every.height > rows.height or directions.str.starts_with("unified").any():
        return None if after else found
    return replace(found, scenario="overlapped-copies", after=after)


def with_change_of(rows: pl.DataFrame, found: Found) -> Found:
    """Return ``found`` with the change for copies to the host, where all of ``rows`` are."""
    to_host = rows.height and (rows["direction"] == "DtoH").all()
    return replace(found, variant=_DOWNLOADS) if to_host else found


def _host_copies(figures: Figures, chosen: pl.Expr, by: Key = "kind") -> pl.DataFrame:
    """Return the ``chosen`` rows of the copies over the host link.

    By ``kind``, a row of many small copies is apart from the large ones beside them.
    """
    return figures.transfers(by).filter(pl.col("direction").is_in(HOST_DIRECTIONS) & chosen)


def _with_saving(rows: pl.DataFrame, reached: pl.Expr) -> pl.DataFrame:
    """Return ``rows`` with ``saving_ns``, largest first.

    It is the exposed time that full bandwidth would save; ``reached`` is the achieved part of it.
    """
    saving = (pl.col("exposed_ns") * (1 - reached)).cast(pl.Int64).alias("saving_ns")
    return rows.with_columns(saving).sort("saving_ns", descending=True, nulls_last=True)


def _copied(
    figures: Figures,
    rows: pl.DataFrame,
    named: Sequence[str],
    shown: Sequence[str],
    *,
    saving: str = "exposed_ns",
    **more: Value,
) -> Found | None:
    """Return the finding on the copies ``rows``, None if their ``saving`` is below the minimum.

    Figures: ``count`` of all, the columns ``named`` of the row with the largest saving,
    ``exposed_ns`` of all (per unit) and ``more``, which may replace them. The evidence ends with
    the columns ``shown``.
    """
    total = int(rows[saving].sum())
    if not figures.worth(total):
        return None
    first = rows.row(rows[saving].arg_max() or 0, named=True)
    return Found(
        total,
        {
            "count": figures.mean(int(rows["count"].sum())),
            **{name: first[name] for name in named},
            "exposed_ns": figures.each(int(rows["exposed_ns"].sum())),
            **more,
        },
        rows.select(
            *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"),
            *shown,
        ),
    )


def _large_bandwidths(figures: Figures) -> pl.DataFrame:
    """Return ``direction`` and ``large_bytes_per_s``, of large copies."""
    return (
        figures.transfers("size")
        .filter((pl.col("size") >= LARGE_COPY_BYTES) & (pl.col("time_ns") > 0))
        .group_by("direction")
        .agg((pl.col("bytes").sum() * 1e9 / pl.col("time_ns").sum()).alias("large_bytes_per_s"))
    )
