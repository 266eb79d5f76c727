"""Thresholds that decide what is reported, each with its reason.

JSON output shows them in ``meta.settings``. Display limits, and limits that
protect against damaged files, are constants in the modules that use them.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

Number = TypeVar("Number", int, float)

SETTINGS: Final[dict[str, Setting]] = {}
"""All settings by name."""


class Setting(msgspec.Struct, frozen=True):
    """One threshold."""

    value: float
    reason: str


def _setting(name: str, value: Number, reason: str) -> Number:
    SETTINGS[name] = Setting(value, reason)
    return value


# Steps
WARM_UP_RATIO: Final = _setting(
    "warm_up_ratio",
    1.25,
    "Leading steps above this multiple of the median step time are warm-up: steady steps vary "
    "less, and cuDNN's search and the first allocations take several times more.",
)
FEWEST_STEPS: Final = _setting(
    "fewest_steps_for_warm_up",
    3,
    "With fewer steps, the median may itself be a warm-up step.",
)
STEP_COVERAGE: Final = _setting(
    "step_coverage",
    0.5,
    "Ranges named as iterations are steps if they launch at least this part of the work from the "
    "first to the last of them; those of a data loader launch less.",
)
CUT_STEP: Final = _setting(
    "cut_step",
    0.5,
    "The last marked step of three or more was cut by the end of the program or of the recording, "
    "and is not counted, if it has less than this part of the operators and calls of any other.",
)

# Steps by the period of the kernels
FEWEST_PERIODS: Final = _setting(
    "fewest_periods", 3, "Fewer repetitions of a sequence of kernels may be coincidence."
)
SHORTEST_PERIOD: Final = _setting(
    "shortest_period", 8, "Fewest activities of a training step: the smallest network has more."
)
PERIOD_SIMILARITY: Final = _setting(
    "period_similarity",
    0.95,
    "Share of a period's activities that the next repeats at the same position: allocators and "
    "autotuners add or drop single ones.",
)
PERIOD_COVERAGE: Final = _setting(
    "period_coverage", 0.5, "Minimum share of a stream's work in the repeated stretch."
)
LONGER_STRETCH: Final = _setting(
    "longer_stretch",
    1.05,
    "A longer period is preferred only if its stretch is longer by this factor: the blocks of a "
    "network repeat too, but only to the end of the step.",
)

PERIOD_CANDIDATES: Final = _setting(
    "period_candidates",
    64,
    "Most frequent distances between equal activities that are tried as the period: rare ones "
    "repeat once per step, frequent ones once per block.",
)

# Work without a launch in the trace
SHORTEST_CONTEXT: Final = _setting(
    "shortest_context",
    8,
    "Activities around one without a launch that must recur elsewhere to infer its layer: fewer "
    "recur by chance.",
)
LONGEST_CONTEXT: Final = _setting(
    "longest_context", 4096, "Activities of the longest context that is compared."
)

# Algorithm search
FEWEST_TRIALS: Final = _setting(
    "fewest_trials",
    3,
    "Algorithms of one convolution in one call from which they are a search (cudnn.benchmark): no "
    "library needs more than two for one result.",
)

# Sampled counters
SAMPLED_RUN: Final = _setting(
    "sampled_run",
    2,
    "Sampling intervals that a run of one class or layer lasts at least for its samples to count: "
    "then one lies within it, whatever its phase.",
)

# Recommendations
LEAST_SAVING: Final = _setting(
    "least_saving", 0.01, "A smaller estimated saving, relative to the step, is not a finding."
)
BOTTLENECK_SHARE: Final = _setting(
    "bottleneck_share",
    0.2,
    "From this part of the step on, time without kernels limits the run: TensorFlow's profiler "
    "calls a program with 20 % of waiting for input highly input-bound.",
)
UNRECORDED_SHARE: Final = _setting(
    "unrecorded_share",
    0.1,
    "From this part of launches without recorded work on, what limits the run is not determined "
    "and nothing is recommended: recordings lose none, or a third and more.",
)
LOW_UTILIZATION: Final = _setting(
    "low_utilization",
    0.5,
    "Below this GPU utilization savings of kernel time may not shorten the step; a note is added.",
)
FASTER_ALGORITHM: Final = _setting(
    "faster_algorithm",
    0.8,
    "An alternative convolution algorithm must have an estimated time below this fraction of the "
    "measured time: smaller differences are within the error of the estimate.",
)
LAUNCH_BOUND_SHARE: Final = _setting(
    "launch_bound_share", 0.5, "With this share of launch-bound kernels, launches limit the step."
)
LONGEST_DISPATCH_NS: Final = _setting(
    "longest_dispatch_ns",
    1_000_000,
    "Dispatching an operator takes less: a longer idle gap has another cause.",
)
LONGEST_EVENT_LATENCY_NS: Final = _setting(
    "longest_event_latency_ns",
    500_000,
    "Work that waited for an event starts some microseconds after it: later work waited for "
    "something else.",
)
CULPRIT_SHARE: Final = _setting(
    "culprit_share",
    0.3,
    "An operator or range with less of the idle time is not named as its cause.",
)
LARGE_COPY_BYTES: Final = _setting(
    "large_copy_bytes",
    1 << 20,
    "From this size on the link limits the bandwidth of a copy, not the call.",
)
SLOW_COPY: Final = _setting(
    "slow_copy", 0.5, "Large copies below this part of the link's peak bandwidth are slow."
)
LONG_KERNEL_NS: Final = _setting(
    "long_kernel_ns", 5_000, "Kernels that are shorter on average are limited by their launches."
)
UNUSED_BLOCKS: Final = _setting(
    "unused_multiprocessors",
    0.05,
    "The tails of any network's kernels leave this part of the multiprocessors' time unused.",
)
AT_PEAK: Final = _setting(
    "at_peak", 0.7, "From this part of the attainable rate on, a kernel is at its peak."
)
AT_PEAK_SHARE: Final = _setting(
    "at_peak_share", 0.05, "Less kernel time at the peak is not worth a finding."
)
SLOW_MEMORY: Final = _setting(
    "slow_memory", 0.5, "Kernels below this part of the memory bandwidth are slow."
)
LONG_FOR_BANDWIDTH_NS: Final = _setting(
    "long_for_bandwidth_ns",
    10_000,
    "Kernels that are shorter on average do not reach the memory bandwidth.",
)
MEAN_SHIFT: Final = _setting(
    "mean_shift", 0.05, "Slow first steps that raise the mean step time by less are ignored."
)

FEWEST_TIMED_STEPS: Final = _setting(
    "fewest_timed_steps", 3, "Fewer step times of a batch size have no quartiles to compare."
)
IMAGE_CHANNELS: Final = _setting(
    "image_channels",
    4,
    "A convolution with more input channels does not read the network's input: an image has at "
    "most red, green, blue and alpha.",
)

# Comparison
CONFIDENCE_LEVEL: Final = _setting(
    "confidence_level", 0.95, "Of intervals and tests; the usual value. --level changes it."
)
LEAST_COUNTED: Final = _setting(
    "least_counted",
    0.99,
    "Part of the time of convolutions, GEMMs, attention and recurrent layers that has FLOP counts "
    "at least where the FLOP/s of a run are shown.",
)
FEWEST_COMPARED: Final = _setting(
    "fewest_compared_steps", 2, "A single step has no variance: its run cannot be tested."
)
MINIMUM_EFFECT: Final = _setting(
    "minimum_effect",
    0.01,
    "Minimum relative change to report; --min-effect changes it.",
)
ENOUGH_RUNS: Final = _setting(
    "enough_runs",
    5,
    "With fewer runs of a program their measured variance may be small by chance: the interval is "
    "at least as wide as the usual spread between runs makes it.",
)
PLANNED_POWER: Final = _setting(
    "planned_power",
    0.8,
    "Probability with which a planned comparison finds its change: the convention of trials.",
)
NOISE_FLOOR: Final = _setting(
    "noise_floor",
    0.1,
    "Part of the minimum effect on the step by which every standard error is widened: changes that "
    "matter to the step stand out from the noise of hundreds of rows that do not.",
)
LEAST_CONFIDENCE: Final = _setting(
    "least_match_confidence", 0.5, "Layers paired with a lower confidence are not compared."
)
TEMPERED: Final = _setting(
    "tempered_evidence",
    0.5,
    "Features of layers are not independent, as their sum supposes (shapes, weights and FLOPs go "
    "together): this much of the evidence counts, so that confidences are calibrated.",
)
MOVED: Final = _setting(
    "moved_layer_nats",
    4.0,
    "Evidence in nats, beside the logarithm of the candidates' number, for a pair out of order.",
)
ORDER_ALONE: Final = _setting(
    "order_alone",
    0.75,
    "Factor of the confidence of pairs that only types and order support: frameworks run "
    "independent branches in different orders, and 3 of 4 such pairs were right (docs/diff.md).",
)
SAME_FLOPS: Final = _setting(
    "same_flops",
    0.05,
    "FLOP counts whose logarithms differ by no more are equal: a bias may or may not be counted.",
)

# Analyses
LEAST_ROW_SHARE: Final = _setting(
    "least_row_share",
    0.01,
    "Breakdown rows below this share of all work are combined.",
)
UNSCOPED_PERCENT: Final = _setting(
    "unscoped_percent",
    1.0,
    "From this percentage of the time on, work without a name scope is noted.",
)
SMALL_COPY_BYTES: Final = _setting(
    "small_copy_bytes",
    64 * 1024,
    "Below this mean size the overhead of a copy dominates its time.",
)
MANY_COPIES: Final = _setting("many_copies", 100, "Fewer small copies than these are not marked.")
FEWEST_GROWING: Final = _setting(
    "fewest_growing_steps",
    3,
    "Memory that grows in each of fewer measured steps is not reported as a possible leak.",
)
REPEATED_GEMMS: Final = _setting(
    "repeated_gemms",
    4,
    "This many equal GEMMs in a row, or more, are one batched GEMM.",
)
REPEATED_GEMMS_GAP: Final = _setting(
    "repeated_gemms_gap_ns",
    1_000_000,
    "GEMMs with more time between them are not in a row: a launch takes some 10 us, in Python "
    "rarely more than 200 us.",
)
MANIFEST_COVERAGE: Final = _setting(
    "manifest_coverage",
    0.75,
    "Minimum share of a model's GEMMs and convolutions in a manifest with names by Keras.",
)
LEAST_PART: Final = _setting(
    "least_part",
    0.05,
    "Parts of the step below this share are not named beside the bottleneck.",
)
MUCH_UNCLASSIFIED: Final = _setting(
    "much_unclassified",
    0.1,
    "From this share of unclassified time on, the report names the option that mends it.",
)
PERCENT_ROUNDING: Final = _setting(
    "percent_rounding",
    0.05,
    "Percent of the time by which the printed shares of a table may miss 100, beside the rounding "
    "of each; less is not counted as rows left out.",
)
LESS_PER_IMAGE: Final = _setting(
    "less_per_image",
    0.05,
    "A smaller relative decrease of the time per image is ignored.",
)

# Ranks
STRAGGLER_SHARE: Final = _setting(
    "straggler_share",
    0.02,
    "A rank whose own time exceeds that of the median rank by less is not a straggler: GPUs of one "
    "model differ by one or two percent.",
)
STRAGGLER_CHANCE: Final = _setting(
    "straggler_chance",
    0.01,
    "Probability, over all ranks, that a rank has the longest own time as often by chance: 8 steps "
    "in a row of two ranks, where `record` has 10.",
)
STRAGGLER_CAUSE: Final = _setting(
    "straggler_cause",
    0.5,
    "Part of a straggler's excess that one cause explains at least: it is then the largest one.",
)
CLOCK_ERRORS: Final = _setting(
    "clock_errors",
    3,
    "Standard errors of the median in the uncertainty of a clock's offset: 99.7 % of a normal "
    "distribution.",
)
TOGETHER_NS: Final = _setting(
    "together_ns",
    1_000_000,
    "Ends that are this near are of one collective, however short: clocks drift within a capture.",
)

# What if
PREDICTION_LEVEL: Final = _setting(
    "prediction_level", 0.9, "Of the intervals of predicted step times; the usual value."
)
PREDICTION_DEVIATE: Final = 1.6448536269514722
"""Half the width of such an interval of a normal distribution, in standard deviations. A number:
to import ``statistics`` takes a hundredth of a report."""
CHANGE_ERROR: Final = _setting(
    "change_error",
    0.08,
    "Standard deviation by which a predicted change misses on a GPU, relative to it: caches, "
    "contention and other effects that a factor leaves out. Fitted to 50 pairs of recordings.",
)
CHANGE_ERROR_CPU: Final = _setting(
    "change_error_cpu",
    0.25,
    "The same on a CPU, fitted to the first record, 60 experiments.",
)
TENSOR_CORE_CONVOLUTIONS: Final = (
    _setting(
        "least_tensor_core_convolutions",
        1.8,
        "Time of convolutions on tensor cores, layout changes included, over what the peaks alone "
        "allow, at least: 1.8 to 3.1 in six networks on an H100 and an H200.",
    ),
    _setting("most_tensor_core_convolutions", 3.2, "The same, at most."),
)
TENSOR_CORE_GEMMS: Final = (
    _setting(
        "least_tensor_core_gemms",
        1.4,
        "The same of GEMMs that the memory bandwidth does not bind: 1.6 to 2.1 in four networks.",
    ),
    _setting("most_tensor_core_gemms", 2.2, "The same, at most."),
)
LIKE_FLOPS: Final = _setting(
    "like_flops", 4.0, "Products within this factor of each other's FLOPs have like shapes."
)
FEWEST_LIKE: Final = _setting(
    "fewest_like", 5, "Fewer products of like shapes have no quartiles to predict from."
)
FEWEST_SIZES: Final = _setting(
    "fewest_sizes",
    3,
    "Distinct sizes of messages from which latency and bandwidth are fitted: two points are always "
    "on a line.",
)
RESIDENT_THREADS: Final = _setting(
    "resident_threads",
    2048,
    "Threads that are resident on a multiprocessor at most; on some GPUs 1,024 or 1,536.",
)
FIXED_NS: Final = _setting(
    "fixed_ns",
    3_000,
    "Part of a kernel's time that does not go with its work: its start, and the tail of its last "
    "blocks. Of kernels below 5 us a twice as large batch took 1.0 to 1.4 times as long, above "
    "100 us 1.93 to 2.0 times.",
)
BATCH_SPREAD: Final = _setting(
    "batch_spread",
    0.06,
    "Least spread of how the work of a kernel goes with the batch, to either side.",
)
HOST_OF_AUTOCAST: Final = _setting(
    "host_of_autocast",
    1.6,
    "Autocast's casts are operators and launches: at most so many times the host's time in them "
    "(operators of AlexNet in BF16 and in FP32: 1.6).",
)
HOST_OF_COMPILED: Final = (
    _setting(
        "least_host_of_compiled",
        0.2,
        "Part of the host's time in operators that code of torch.compile takes, at least.",
    ),
    _setting(
        "most_host_of_compiled",
        0.6,
        "The same, at most; also of the host's time between operators of layers.",
    ),
)
LEFT_BY_GRAPHS: Final = _setting(
    "left_by_graphs",
    0.1,
    "Part of the time of operators and launches that remains at most where a graph is replayed.",
)
RUN_TO_RUN_KERNELS: Final = _setting(
    "run_to_run_kernels",
    0.003,
    "Standard deviation of the time that kernels take in a step, from run to run of one program on "
    "one GPU: steps of a run vary less than runs do. 0.03 to 0.3 % were measured of five programs "
    "on an H100 and an H200; other days and clocks differ by more.",
)
RUN_TO_RUN_PAGEABLE: Final = _setting(
    "run_to_run_pageable",
    0.09,
    "The same of copies of pageable memory, which the host stages: 3 to 19 % of single recordings, "
    "6 to 9 % of means over two, were measured.",
)
RUN_TO_RUN_COPIES: Final = _setting(
    "run_to_run_copies", 0.02, "The same of other copies: 0.2 to 2 % were measured."
)
RUN_TO_RUN_HOST: Final = _setting(
    "run_to_run_host",
    0.08,
    "The same of the time of host threads, launches and gaps: 8 % in the median of 68 programs.",
)
UNPROFILED_LEAST: Final = _setting(
    "unprofiled_least",
    0.77,
    "The host's own work without the profiler is at least this part of its estimate, with 95 %: "
    "fitted to 68 host-bound recordings; half of the variance is the programs' own.",
)
UNPROFILED_MOST: Final = _setting(
    "unprofiled_most", 1.19, "And at most this part of its estimate, with 95 %."
)
RUN_TO_RUN_CPU: Final = _setting(
    "run_to_run_cpu",
    0.05,
    "The same of programs on a CPU, whose speed others change: 4 to 7 % were measured on a virtual "
    "machine with 2 cores.",
)
USUAL_BLOCKS: Final = _setting(
    "usual_blocks",
    4,
    "The usual variance between runs counts as that of so many recordings; the variance between "
    "the timed steps before and after the profiled ones counts as that of one.",
)
BUSY_MACHINE: Final = _setting(
    "busy_machine",
    0.05,
    "Part of the steps in which a thread waits for a processor, from which on a note names it.",
)
FEWEST_LAUNCHES: Final = _setting(
    "fewest_launches",
    0.95,
    "Part of the work of the steps whose launch is recorded, from which savings are simulated: "
    "work without one cannot wait for the host.",
)
BUSY_ANNOTATION: Final = _setting(
    "busy_annotation",
    2,
    "A thread was busy in an annotation, and did not wait there for another thread, if over three "
    "recordings or more its durations are so many times less spread than the times from the end of "
    "the other thread's work to its own end.",
)
REPLAYED_ACTIVITIES: Final = _setting(
    "replayed_activities",
    10_000,
    "Of a longer trace whole steps with at most as many activities are replayed, around the middle "
    "of the measured ones: they take 0.1 s of CPU time, and half as much a scenario.",
)

LONGEST_CLOCK_ERROR_NS: Final = _setting(
    "longest_clock_error_ns",
    100_000,
    "A synchronizing call that returns up to so long before its last work ends shows the error "
    "between the clocks of host and device; a longer one did not wait for that work.",
)
LONGEST_LATENCY_NS: Final = _setting(
    "longest_latency_ns",
    100_000,
    "From a launch to its work, or from work to the next that waits for it, some microseconds "
    "pass: longer times are not latency.",
)
FULL_QUEUE: Final = _setting(
    "full_queue",
    256,
    "Launches of a stream without finished work from which a long launch call may wait for room in "
    "the launch queue: the driver queues about 1,024.",
)
LONG_LAUNCH: Final = _setting(
    "long_launch",
    5,
    "A launch call that takes so many times the median of its name waited for room in the queue.",
)

# History
CHANGE_POINT_P: Final = _setting(
    "change_point_p",
    0.01,
    "Largest p value of a change point: 1 in 100 histories without a change has one by chance.",
)
FEWEST_OF_LEVEL: Final = _setting(
    "fewest_of_level",
    3,
    "Runs from which on a level is one: one or two slow runs may be outliers.",
)
CHANGE_WINDOW: Final = _setting(
    "change_window",
    100,
    "Runs that are searched for change points together; longer histories in windows that overlap "
    "by half. More runs on either side hardly narrow the interval of a change.",
)
LINE_EVIDENCE: Final = _setting(
    "line_evidence",
    6,
    "Difference of Schwarz's criterion (BIC) from which on a series drifts instead of changing at "
    "a run: strong evidence by Kass and Raftery (1995).",
)
OUTLYING_RUN: Final = _setting(
    "outlying_run",
    5,
    "A run that differs from the median of its level by so many standard deviations (by the median "
    "absolute deviation) is an outlier: it is no part of the level, and moves none.",
)

# Graph replays
CAPTURE_DISAGREEMENT: Final = _setting(
    "capture_disagreement",
    0.1,
    "Greatest part of a replay's recognizable kernels outside an operator that launches such, for "
    "an alignment with a capture: another network of as many kernels has far more.",
)
LARGEST_CAPTURE_GAP: Final = _setting(
    "largest_capture_gap",
    0.05,
    "Greatest part of a replay without a launch in its capture, and of a capture without a node: "
    "copies and memsets of no bytes leave none.",
)
BY_ORDER: Final = _setting(
    "by_order",
    0.98,
    "Confidence of the layers of a replay whose activities have launches of a capture in order.",
)
BY_ORDER_OF_STREAMS: Final = _setting(
    "by_order_of_streams",
    0.7,
    "The same of several streams without node ids: they may have run in another order.",
)
BY_WHOLE_SEQUENCE: Final = _setting(
    "by_whole_sequence",
    0.95,
    "Confidence of the layers of a replay that repeats a whole sequence of activities elsewhere.",
)
BY_SEQUENCE: Final = _setting(
    "by_sequence",
    0.9,
    "The same of a replay that repeats parts of one, times the part of it that has a source.",
)

# Recording
OVERHEAD_LEVEL: Final = _setting(
    "overhead_level", 0.9, "Of the interval of the profiler's overhead; the usual value."
)
