"""The columns of the findings and of their evidence, and the figures in their sentences."""

from __future__ import annotations

from typing import Final

from traceana.table import (
    BYTES,
    CATEGORY,
    COUNT,
    DEVICE,
    FLAG,
    FLOPS,
    INTENSITY,
    KERNEL,
    LONG,
    MEAN,
    NUMBER,
    OF_FLOPS,
    ONE_CALL,
    PART,
    PARTS,
    PATH,
    RATE,
    RATIO,
    SHARE,
    STEP,
    TEXT,
    TIME,
    Column,
    by_name,
    laid_out,
)

FRAMEWORKS: Final[dict[str, str]] = {
    "pytorch": "PyTorch",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "native": "change",
}
"""The columns with the change for each framework, and for programs without one."""
_SAVING: Final = "saving"
"""The scale of savings."""

FINDINGS: Final = (
    Column("rule", TEXT, "id of the rule"),
    Column("title", LONG, "title of the rule"),
    Column(
        "kind",
        TEXT,
        "kind of the saving: `simulation`, `estimate`, `upper bound` (the change saves at most "
        "this: idle time during operators and launches, which is shorter without a profiler, or "
        "work that a fused kernel does in part), `time per example` (a part of it: the step gets "
        "longer), `measurement validity` (affects measurement validity, no saving), `no saving`",
    ),
    Column(
        "saving_ns",
        TIME,
        "`simulation`: per measured step, of all its devices. Else per measured step and device; "
        "without steps per device, over the capture; 0 for the last two kinds. Savings overlap",
        scale=_SAVING,
    ),
    Column(
        "saving_share",
        SHARE,
        "of a step without the profiler (as recorded where its cost is not known), without steps "
        "of the capture. Screens name it",
    ),
    Column(
        "saving_low_ns",
        TIME,
        "of a simulation: lower end of the interval of the saving "
        "(`meta.settings.prediction_level`); else null",
    ),
    Column("saving_high_ns", TIME, "of a simulation: upper end of that interval; else null"),
    Column(
        "scenario",
        TEXT,
        "of a simulation: what was changed, as `traceana whatif --scenario` reads it; else null",
    ),
    Column(
        "estimate_ns",
        TIME,
        "the saving by the rule's own estimate, per measured step and device; `saving_ns` where it "
        "is not simulated",
    ),
    Column("finding", LONG, "the finding, a sentence"),
    Column("estimate", LONG, "how the saving is computed"),
    Column("caveat", LONG, "when no change is needed"),
    *(
        Column(name, LONG, f"what to change in {framework}; empty where it does not fit the trace")
        for name, framework in list(FRAMEWORKS.items())[:3]
    ),
    Column("native", TEXT, "what to change in a program without a framework; else empty"),
)
"""One row per finding."""

PLAN: Final = (
    Column("rule", TEXT, "id of the rule"),
    Column("scenario", TEXT, "its change and those before, as `whatif --scenario` reads them"),
    Column("from_ns", TIME, "median step before the change"),
    Column("step_ns", TIME, "median step after it"),
    Column("low_ns", TIME, "lower end of its interval (`meta.settings.prediction_level`)"),
    Column("high_ns", TIME, "upper end"),
    Column("saving_ns", TIME, "what the mean step gets shorter by this change"),
    Column("saving_share", SHARE, "of the mean step before the plan"),
    Column(
        "excess_reason",
        LONG,
        "why that is more than the finding's `estimate_ns`; null where it is not, or unknown",
    ),
)
"""One row per change of the plan, in its order."""

EVIDENCE: Final = laid_out(
    (
        Column("activation_ns", TIME, "time of activation kernels"),
        Column("added", MEAN, "additions of gradients to zeros"),
        Column("algbw_bytes_per_s", RATE, "algorithm bandwidth", title="algbw"),
        Column("algorithm", PARTS, "algorithm of the convolutions, as in `kernels`"),
        Column("algorithms", PARTS, "algorithms that a search tried"),
        Column("alternative", TEXT, "cuDNN's fastest of Winograd and FFT for the shape"),
        Column("alternative_flops", FLOPS, "FLOPs that it executes"),
        Column("arithmetic_intensity", INTENSITY, "FLOPs per compulsory byte"),
        Column("batch", NUMBER, "batch size"),
        Column("bias_ns", TIME, "time of bias kernels"),
        Column("blocking", TEXT, "whether the copying calls block the host, as in `transfers`"),
        Column("blocks", MEAN, "median number of thread blocks"),
        Column("busbw_bytes_per_s", RATE, "bus bandwidth", title="busbw"),
        Column("bytes", BYTES, "compulsory bytes, or bytes of the copies"),
        Column("bytes_per_s", RATE, "achieved bandwidth", title="bandwidth"),
        Column("call", LONG, "call of the runtime or driver"),
        Column("calls", COUNT, "number of calls"),
        Column("cast", PART, "types of source and result of the casts"),
        Column("category", CATEGORY, "as in `kernels`", title="class"),
        Column("cause", PART, "cause of the idle time"),
        Column("collective", PART, "the collective"),
        Column("computing_ns", TIME, "time of the computation at the tensor cores' rate"),
        Column("copies_count", COUNT, "number of copies"),
        Column("count", COUNT, "number of copies, gaps, convolutions, chains or collectives"),
        Column("culprit", LONG, "the line, operator, range or rank with most of the time"),
        Column("device", DEVICE, "the device"),
        Column("device_name", LONG, "name of the device"),
        Column("direction", PART, "direction of the copies, or pass"),
        Column("executed_flops", FLOPS, "FLOPs that the algorithm executes", scale=OF_FLOPS),
        Column("exposed_ns", TIME, "time that no kernel overlaps", zeros=True),
        Column("flops", FLOPS, "FLOPs, as in `flops`", scale=OF_FLOPS),
        Column("flops_share", SHARE, "executed FLOPs over those of the other algorithm"),
        Column("gaps_ns", TIME, "idle time between the GEMMs of a row"),
        Column("high_ns", TIME, "upper quartile of the time per example", scale="quartiles"),
        Column("host_memory", TEXT, "as in `transfers`", title="memory"),
        Column("idle_ns", TIME, "idle time of the device"),
        Column("image_ns", TIME, "step time over the batch, rounded down"),
        Column("in_runs", COUNT, "GEMMs of one shape in a row"),
        Column("in_runs_ns", TIME, "their time"),
        Column("kernel_ns", TIME, "time of kernels"),
        Column("large_bytes_per_s", RATE, "bandwidth of large copies", title="large bandwidth"),
        Column("larger_batch", NUMBER, "a larger batch size"),
        Column("larger_image_ns", TIME, "step time over that batch"),
        Column("last_count", COUNT, "collectives at which the rank arrives last"),
        Column("launch_bound_share", SHARE, "launch-bound kernels over all kernels"),
        Column("launches_count", COUNT, "number of launches, copies and memsets included"),
        Column("layer", PATH, "path of the layer"),
        Column("layout_ns", TIME, "time of layout changes"),
        Column("line", LONG, "line of the program on which the host was when the device went idle"),
        Column("link", TEXT, "link of the copies, as in `transfers`"),
        Column("longest", COUNT, "most GEMMs in a row"),
        Column("low_ns", TIME, "lower quartile of the time per example", scale="quartiles"),
        Column("max_ns", TIME, "longest gap", scale=ONE_CALL),
        Column("mean_bytes", BYTES, "mean size, rounded down", title="mean size"),
        Column("mean_ns", TIME, "mean gap, rounded down", scale=ONE_CALL),
        Column("message_bytes", BYTES, "message size"),
        Column("moving_ns", TIME, "time of the compulsory bytes at the memory bandwidth"),
        Column("multiprocessors", COUNT, "multiprocessors of the device"),
        Column("name", KERNEL, "name of the kernel"),
        Column("of_attainable", SHARE, "achieved rate over that of the roofline"),
        Column(
            "operator",
            LONG,
            "the operator, or those of a chain; of idle time the innermost of the host",
        ),
        Column("part", PART, "as in `kernels`"),
        Column("peak_bytes_per_s", RATE, "peak of the link", title="peak bandwidth"),
        Column("peak_share", SHARE, "bandwidth over the peak of the link", title="of peak"),
        Column("possibly_added", MEAN, "additions that may be of gradients to zeros"),
        Column("precision", PART, "operand type, as in `kernels`"),
        Column("processor", TEXT, "`GPU`, `CPU`"),
        Column("products_ns", TIME, "time of GEMMs"),
        Column("range", LONG, "innermost range of the host"),
        Column("ranks", COUNT, "ranks of the process group"),
        Column("ratio", RATIO, "a ratio of two times or rates"),
        Column("reason", LONG, "why the processor is idle, or a share above 100 %"),
        Column("saving_ns", TIME, "part of the saving", scale=_SAVING),
        Column("shape", LONG, "input shape"),
        Column("share", SHARE, "part of the time of the device, or of the step"),
        Column("short_calls", COUNT, "launches of fewer blocks than multiprocessors"),
        Column("short_ns", TIME, "their time"),
        Column("step", NUMBER, "number of the step"),
        Column(
            "step_ns",
            TIME,
            "`time_ns` per measured step and device",
            title="per step",
            scale=STEP,
        ),
        Column("steps", COUNT, "number of steps"),
        Column("steps_count", COUNT, "number of steps"),
        Column("synchronous", COUNT, "copies by calls that block the host"),
        Column("time_ns", TIME, "summed durations"),
        Column("transfer_ns", TIME, "time of collectives that is not waiting"),
        Column("tried", COUNT, "kernels of the search"),
        Column("tried_ns", TIME, "their time"),
        Column("type", TEXT, "type of the layer"),
        Column("unbounded_ns", TIME, "time of calls without a count of bytes"),
        Column("unused_ns", TIME, "time of the multiprocessors without a block"),
        Column("unused_share", SHARE, "that over `short_ns`"),
        Column("wait_ns", TIME, "waits for other ranks"),
        Column("wall_ns", TIME, "wall time of a step"),
        Column("warm_up", FLAG, "whether the step is warm-up"),
        Column("which", TEXT, "steps with profiler overhead, where they are few"),
        Column("work", PART, "kind of work: memset, fill, addition"),
        Column("workspace_bytes", BYTES, "workspace of the other algorithm; null if unknown"),
    ),
    dropped="workspace_bytes mean_bytes link peak_bytes_per_s step_ns alternative_flops flops "
    "multiprocessors precision longest peak_share large_bytes_per_s category executed_flops "
    "operator blocking synchronous algorithm count",
)
"""The columns of the rows that a finding is based on, and the figures of its sentence; those of
analyses have the rows of all measured steps together."""
BY_NAME: Final = by_name(EVIDENCE)
