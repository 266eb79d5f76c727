"""Rules on GPU idle time by cause, and on exposed communication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl
from msgspec.structs import replace

from traceana.advise.figures import culprit
from traceana.advise.rule import Change, Found, Value, rule
from traceana.settings import LONGEST_DISPATCH_NS

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_STEP_RANGE: Final = r"^ProfilerStep"
_WITH_WORKERS: Final = "DataLoader with workers"
_LOADING: Final = Change(
    pytorch="DataLoader(num_workers=N, prefetch_factor=2 or more, persistent_workers=True); "
    "decode on the device, or store decoded data",
    tensorflow="dataset.map(..., num_parallel_calls=AUTOTUNE), cache, and prefetch(AUTOTUNE) "
    "as the last stage",
    jax="load batches in worker processes (grain, tf.data) and put them on the device ahead",
    native="read and prepare the next input on another thread while the device works",
)


@rule(
    title="data loading",
    kind="estimate",
    sentence="idle {idle_ns} waiting for the next batch[, in {culprit}]",
    estimate="all the idle time with the cause data loader.",
    caveat="Prefetching needs free CPU cores.",
    change=_LOADING,
    variants={
        _WITH_WORKERS: replace(
            _LOADING,
            pytorch="the DataLoader has workers: more of them, a larger prefetch_factor, "
            "persistent_workers=True; decode on the device, or store decoded data",
        )
    },
    simulation="`data-ready`.",
)
def data_loading(figures: Figures) -> Found | None:
    """Idle time while the next batch is loaded."""
    found = idle_for(figures, "data_loader", by="range", scenario="data-ready")
    if found is None or not figures.program.loader_workers:
        return found
    return replace(found, variant=_WITH_WORKERS)


_IN_OPERATORS: Final = "time in operators"
_HOST_WORK: Final = Change(
    pytorch="move Python work out of the step (logging, metrics, schedulers every N steps), "
    "optimizers with foreach or fused=True, torch.compile",
    tensorflow="the whole step in one tf.function, steps_per_execution of Keras",
    jax="the whole step in one jax.jit, lax.scan over several steps",
    native="launch the next kernels before host work, CUDA graphs, host work on another thread",
    inference="torch.compile or CUDA graphs; tokenization, sampling and scheduling of the "
    "next batch on another thread or process",
)


@rule(
    title="host bound",
    kind="estimate",
    sentence="{processor} idle {idle_ns} in {count} gaps: {reason}[, mostly in {culprit}]",
    estimate="all the idle time in which the host had not begun to launch and was not blocked; of "
    "a CPU, in which no operator ran. An upper bound where most of it is during operators, "
    "which the profiler makes slower, and the profiler's cost is not known.",
    caveat="A profiler that records stacks or shapes slows the host: compare with an unprofiled "
    "run. A trace without steps includes the warm-up.",
    change=_HOST_WORK,
    variants={
        _IN_OPERATORS: replace(
            _HOST_WORK,
            pytorch="torch.compile(mode='reduce-overhead') or torch.cuda.graphs; optimizers with "
            "fused=True or foreach",
            tensorflow="tf.function(jit_compile=True) around the whole step, steps_per_execution",
        )
    },
    simulation="`cuda-graphs`, where most of the idle time is during operators, and the profiler's "
    "cost is known.",
)
def host_bound(figures: Figures) -> Found | None:
    """Idle time while the host runs operators, or does something that is not recorded."""
    if figures.on_cpu:
        return idle_for(
            figures, "host", by="range", processor="CPU", reason="no operator ran on any thread"
        )
    # If kernels are launch-bound, the time of dispatching belongs to the rule launch_bound.
    long = (pl.col("cause").cast(pl.String) == "host") | (pl.col("time_ns") > LONGEST_DISPATCH_NS)
    condition = long if figures.is_launch_bound else None
    found = idle_for(
        figures,
        "host",
        "operator",
        by="range",
        condition=condition,
        processor="GPU",
        reason="next work not launched yet",
    )
    if found is None:
        return None
    times = found.evidence.group_by(pl.col("cause") == "operator").agg(pl.col("time_ns").sum())
    if not times.sort("time_ns")["cause"].item(-1):
        return found
    found = replace(found, variant=_IN_OPERATORS)
    if not figures.profiler_known:
        return replace(found, kind="upper bound")
    return replace(found, scenario="cuda-graphs")


@rule(
    title="launch bound",
    kind="estimate",
    sentence="GPU idle {idle_ns} during {launches_count} launches (copies and memsets "
    "included); {launch_bound_share} of kernels shorter than their launch call",
    estimate="all the idle time in an operator before its launch and in the launch call, gaps up "
    "to 1 ms, where half of the kernels or more are shorter than their launch call. A graph "
    "launches them with one call. An upper bound where the profiler's cost is not known.",
    caveat="The profiler makes each launch slower: compare with the step time of an unprofiled "
    "run. A larger batch helps as well.",
    change=Change(
        pytorch="torch.compile(mode='reduce-overhead') or torch.cuda.graphs; fused optimizers; a "
        "larger batch",
        tensorflow="tf.function(jit_compile=True), steps_per_execution; a larger batch",
        jax="one jax.jit around the whole step; --xla_gpu_enable_command_buffer; a larger batch",
        native="CUDA graphs; fewer, larger kernels",
        inference="CUDA graphs (vLLM: without enforce_eager), "
        "torch.compile(mode='reduce-overhead'); a larger batch",
    ),
    simulation="`cuda-graphs`: it also shortens gaps that other findings count.",
)
def launch_bound(figures: Figures) -> Found | None:
    """GPU idle time while the host dispatches and launches kernels shorter than their launch."""
    if figures.on_cpu or not figures.is_launch_bound:
        return None
    launches = figures.devices["launches"].sum()
    found = idle_for(
        figures,
        "operator",
        "launch_latency",
        condition=pl.col("time_ns") <= LONGEST_DISPATCH_NS,
        scenario="cuda-graphs",
        launch_bound_share=figures.launch_bound,
        launches_count=figures.mean(int(launches)),
    )
    if found is None or figures.profiler_known:
        return found
    return replace(found, kind="upper bound")


@rule(
    title="host synchronization",
    kind="estimate",
    sentence="GPU idle {idle_ns} in {count} gaps behind synchronizing calls[, mostly in {culprit}]",
    estimate="all the idle time with the cause synchronization.",
    caveat="A benchmark that synchronizes each step on purpose shows this too.",
    change=Change(
        pytorch="no .item(), .cpu(), print or if on a tensor inside the step; torch.cuda."
        "synchronize() for timings alone; non_blocking=True",
        tensorflow="fetch losses and metrics every N steps; no .numpy() inside the step",
        jax="block_until_ready and float(loss) every N steps only",
        native="cudaStreamSynchronize and cudaDeviceSynchronize only where the host needs a "
        "result; asynchronous copies, and events between streams",
    ),
)
def host_synchronization(figures: Figures) -> Found | None:
    """GPU idle time behind synchronizing calls."""
    return None if figures.on_cpu else idle_for(figures, "synchronization")


@rule(
    title="memory allocation",
    kind="estimate",
    sentence="GPU idle {idle_ns} in {count} gaps during driver allocations and frees"
    "[, mostly in {culprit}]",
    estimate="all the idle time with the cause allocation.",
    caveat="In the first steps the caching allocator fills its pool. A trace without steps "
    "includes the start of the program.",
    change=Change(
        pytorch="keep shapes fixed, and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no "
        "torch.cuda.empty_cache() inside the step",
        tensorflow="fixed shapes; TF_GPU_ALLOCATOR=cuda_malloc_async",
        jax="leave XLA_PYTHON_CLIENT_PREALLOCATE on; donate buffers (donate_argnums)",
        native="allocate once before the loop, or cudaMallocAsync with a memory pool",
    ),
)
def allocation(figures: Figures) -> Found | None:
    """GPU idle time while the host allocates or frees driver memory."""
    return None if figures.on_cpu else idle_for(figures, "allocation")


@rule(
    title="code loading",
    kind="estimate",
    sentence="GPU idle {idle_ns} in {count} gaps while the driver compiles or loads code"
    "[, mostly in {culprit}]",
    estimate="all the idle time with the cause driver.",
    caveat="The first launch of a kernel loads its code: in a trace without warm-up steps this is "
    "the start of the program. A full command buffer counts too.",
    change=Change(
        pytorch="warm-up steps with the shapes of the run; CUDA_MODULE_LOADING=EAGER loads all "
        "code at the start; fixed shapes, for which cuDNN and Triton choose kernels once; a build "
        "for the device's architecture, else the driver compiles PTX",
        tensorflow="warm-up steps with the shapes of the run; CUDA_MODULE_LOADING=EAGER; fixed "
        "shapes (input_signature)",
        jax="warm-up steps with the shapes of the run; CUDA_MODULE_LOADING=EAGER; a persistent "
        "compilation cache (jax_compilation_cache_dir)",
        native="a build for the device's architecture (nvcc -arch), else the driver compiles PTX; "
        "CUDA_MODULE_LOADING=EAGER; one launch of each kernel before the loop",
        inference="warm-up requests of every shape before serving; CUDA_MODULE_LOADING=EAGER loads "
        "all code at the start; padding to few shapes",
    ),
)
def code_loading(figures: Figures) -> Found | None:
    """GPU idle time while the driver compiles or loads code, or its command buffer is full."""
    return None if figures.on_cpu else idle_for(figures, "driver")


_LATE_RANKS: Final = "late ranks"
_LATE: Final = "traceana ranks: which rank is late, and why; "


@rule(
    title="exposed communication",
    kind="estimate",
    sentence="[late ranks delay the step by {wait_ns}: {culprit} is last in {last_count} of "
    "{count} collectives; ]exposed {exposed_ns} of {time_ns} collective time[; overlap saves at "
    "most {transfer_ns}][; GPU idle {idle_ns} before collectives]",
    estimate="the exposed time of collectives, and the idle time with the cause collective. "
    "Collectives that overlap with compute cost neither. Where most of it is waiting for late "
    "ranks, which a trace of all ranks shows: the exposed waits, a mean of the other ranks.",
    caveat="The duration of a collective includes the wait for the slowest rank: compare the "
    "ranks first.",
    change=Change(
        pytorch="DistributedDataParallel, not a gather at the end; smaller bucket_cap_mb, "
        "gradient_as_bucket_view=True; no_sync() for accumulated steps; FSDP with prefetch",
        tensorflow="tf.distribute with gradients packed (experimental_hints); NCCL for all-reduce",
        jax="--xla_gpu_enable_latency_hiding_scheduler=true; shardings with fewer gathers",
        native="non-blocking collectives or halo exchanges on a stream of their own, "
        "overlapped with independent computation; CUDA-aware MPI",
        inference="tensor parallelism over fewer GPUs, within one node; fused or custom "
        "all-reduce kernels; pipeline or data parallelism across nodes",
    ),
    variants={
        _LATE_RANKS: Change(
            pytorch=_LATE + "equal batches and sequence lengths (DistributedSampler, drop_last); "
            "no logging, evaluation or checkpoint on one rank alone",
            tensorflow=_LATE + "equal input for each worker (dataset.shard); no logging or "
            "checkpoint on the chief alone",
            jax=_LATE + "equal shards; no logging or checkpoint on one process alone",
            native=_LATE + "equal work for each rank",
            inference=_LATE + "equal batches; no scheduling on one rank alone",
        )
    },
)
def exposed_communication(figures: Figures) -> Found | None:
    """Collectives that do not overlap with compute."""
    if figures.on_cpu:
        return None
    exposed, idle = figures.exposed_collectives_ns, figures.idle_ns("collective")
    if not figures.worth(exposed + idle):
        return None
    found = Found(
        exposed + idle,
        {
            "time_ns": figures.each(figures.class_ns("collective")),
            "exposed_ns": figures.each(exposed),
            "idle_ns": figures.each(idle) if idle else None,
            "share": (exposed + idle) / figures.window_ns,
            **dict.fromkeys(("wait_ns", "transfer_ns", "culprit", "last_count", "count")),
        },
        figures.collectives.frame.select(
            *("collective", "message_bytes", "ranks", "count", "time_ns", "exposed_ns"),
            *("algbw_bytes_per_s", "busbw_bytes_per_s"),
        ),
    )
    if 2 * figures.late_ns <= exposed + idle:
        return found
    by_rank = figures.waits.group_by("rank", "device").agg(
        pl.col("last_count", "count", "others_wait_ns").sum()
    )
    last = by_rank.sort("others_wait_ns", "rank", "device").row(-1, named=True)
    # The last rank has no wait, and is one of the devices.
    saving = figures.late_ns * by_rank.height // max(by_rank.height - 1, 1)
    late = {
        "wait_ns": figures.each(saving),
        "transfer_ns": figures.each(exposed - figures.late_ns),
        "culprit": f"GPU {last['device']}" if last["rank"] is None else f"rank {last['rank']}",
        "last_count": last["last_count"],
        "count": last["count"],
        "share": saving / figures.window_ns,
    }
    figured = {**found.figures, **late}
    return replace(found, saving_ns=saving, figures=figured, variant=_LATE_RANKS)


def idle_for(
    figures: Figures,
    *causes: str,
    by: Literal["operator", "range"] = "operator",
    condition: pl.Expr | None = None,
    more: int = 0,
    scenario: str | None = None,
    **given: Value,
) -> Found | None:
    """Return the finding on the idle time with these ``causes``, None below the minimum saving.

    ``condition`` selects gaps; ``more`` is further time that the same change would save, and
    ``scenario`` that of :class:`Found`. Figures: ``idle_ns`` per unit, ``share`` of the window,
    ``count`` of the gaps, ``culprit`` (the line of the program, else the operator or range, with
    most of the idle time: :func:`traceana.advise.figures.culprit`) and the ``given`` ones, which
    may replace them.
    """
    if not figures.worth(figures.idle_ns(*causes) + more):
        return None
    gaps = figures.gaps(causes, by)
    if condition is not None:
        gaps = gaps.filter(condition)
    total = int(gaps["time_ns"].sum())
    if not figures.worth(total + more):
        return None
    time = pl.col("time_ns")
    evidence = (
        gaps.group_by("device", "cause", by, "line")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            time.sum(),
            (time.sum() // pl.len()).cast(pl.Int64).alias("mean_ns"),
            time.max().alias("max_ns"),
        )
        .with_columns(pl.col("cause", by).cast(pl.String))
        .sort("time_ns", by, "line", "device", "cause", descending=[True, *[False] * 4])
    )
    # A step's own range says nothing.
    named = evidence.filter(~pl.col(by).str.contains(_STEP_RANGE))
    most = culprit(evidence, "line", total) or culprit(named, by, total)
    if evidence["line"].null_count() == evidence.height:
        evidence = evidence.drop("line")
    longest = figures.longest_idle_ns
    return Found(
        total + more if longest is None else min(total + more, longest),
        {
            "idle_ns": figures.each(total),
            "share": total / figures.window_ns,
            "count": figures.mean(gaps.height),
            "culprit": most,
            **given,
        },
        evidence,
        scenario,
    )
