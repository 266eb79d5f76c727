"""The commands: names, help, options, and the function that makes the result of each.

The command line, the methods of a Trace, the functions of ``traceana``, the tools of the MCP
server, the completion of shells and the reference are made of this table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from traceana.errors import NoSuchSelectionError, suggested
from traceana.vocabulary.option_words import (
    CompareBy,
    CriticalBy,
    DiffBy,
    FlopsBy,
    HistoryBy,
    HistoryOrder,
    IdleBy,
    KernelsBy,
    LayersBy,
    LayersOrder,
    LinesBy,
    MemoryBy,
    SamplesBy,
    TransfersBy,
)

if TYPE_CHECKING:
    from traceana.table import Column


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command: a flag, a number, one of some words, or texts.

    Without it the value is False, the first of the words, or None.
    """

    name: str
    kind: Any
    help: str
    metavar: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words that it accepts; empty for other kinds."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command.

    ``function`` makes its result, ``module:name``: of a trace and the ``options``, where it is
    called ``of`` a trace: of one on the clock of its program, unless the command is about what was
    ``recorded``, or about durations of device work, which both clocks share. With ``own`` it has a
    module in :mod:`traceana.cli`, for arguments or exit codes of its own. ``pictures``: the result
    has some. There is something to show where one of the tables ``needs`` has rows. ``columns``
    names the declarations of its columns, ``module:name`` below the package, separated by spaces.
    A command of a trace has its name in :mod:`traceana.api` too, for type checkers.
    """

    name: str
    summary: str
    help: str = ""
    example: str = ""
    function: str = ""
    of: Literal["trace", "traceana"] | None = None
    options: tuple[Option, ...] = ()
    own: bool = False
    recorded: bool = False
    pictures: bool = True
    needs: tuple[str, ...] = ("activities",)
    columns: str = ""

    @property
    def text(self) -> str:
        """The help: summary, explanation and example."""
        example = f"Example: {self.example}" if self.example else ""
        return "\n\n".join(part for part in (self.summary, self.help, example) if part)


_SUM: Final = Option(
    "sum",
    bool,
    "Sums over the capture. Default: means per measured step, where the trace has steps; JSON, "
    "CSV, TSV, Parquet and XLSX always have the sums.",
)

COMMANDS: Final = {
    command.name: command
    for command in (
        Command(
            name="report",
            summary="Summary: steps, classes, layers, transfers, recommendations.",
            help="CSV, TSV and Parquet have the time by class; JSON has all sections.",
            example="traceana report trace.json.gz -o report.html",
            function="traceana.report.pages.report:report",
            of="trace",
            columns="analyze.classes:COLUMNS",
        ),
        Command(
            name="advise",
            summary="Recommendations, by estimated saving, each with its evidence.",
            help="Savings are simulated, estimated (≈) or upper bounds (≤, last); they may "
            "overlap. --fail-on and --max are gates for continuous integration.",
            example="traceana advise trace.json.gz --rule data_loading",
            function="traceana.report.pages.advise:advise",
            of="trace",
            columns="advise.columns:FINDINGS",
            own=True,
        ),
        Command(
            name="info",
            summary="Contents of a trace: format, devices, counts, integrity.",
            help="The JSON is one object, without rows.",
            example="traceana info trace.json.gz",
            function="traceana.report.pages.info:info",
            of="trace",
            recorded=True,
            pictures=False,
            needs=(),
        ),
        Command(
            name="kernels",
            summary="Kernels by time: calls, time, class.",
            help="For a CPU trace, operators. CSV, JSON and Parquet have all classification "
            "columns and the rule that matched. A wide terminal (or --columns) also shows grid, "
            "block, registers, shared memory, occupancy, waves and tail.",
            example="traceana kernels trace.json.gz --by shape",
            function="traceana.report.pages.kernels:kernels",
            of="trace",
            recorded=True,
            columns="analyze.kernels:COLUMNS analyze.per_step:COLUMNS",
            options=(
                Option("unclassified", bool, "Only unclassified kernels, by time."),
                Option(
                    "by",
                    KernelsBy,
                    "One row per kernel; per class; or per kernel, operator and input shapes.",
                ),
                _SUM,
            ),
            needs=("activities", "counters"),
        ),
        Command(
            name="layers",
            summary="Time per pass, FLOPs, FLOP/s and algorithms of each layer.",
            help="Work outside layers has its own rows: optimizer, data, collective, hooks, and "
            "unattributed work by reason. The rows add up to all work. 1 multiply-accumulate = 2 "
            "FLOPs.",
            example="traceana layers trace.json.gz --direction",
            function="traceana.report.pages.layers:layers",
            of="trace",
            recorded=True,
            columns="analyze.layers:COLUMNS analyze.per_step:COLUMNS analyze.per_step:COSTS",
            options=(
                Option("by", LayersBy, "One row per layer, or per layer type."),
                Option("depth", int, "Group layers by the first N parts of their paths.", "N"),
                Option(
                    "direction",
                    bool,
                    "One row per layer and pass: forward, dgrad, wgrad, backward, optimizer.",
                ),
                Option("order", LayersOrder, "Most time first, or in order of execution."),
                Option(
                    "tree",
                    bool,
                    "One row per node of the layers' tree: own and total time, blocks folded.",
                ),
                Option(
                    "calibrate",
                    bool,
                    "Measure the peaks of this machine's CPU, for CPU traces recorded on it.",
                ),
                _SUM,
            ),
        ),
        Command(
            name="flops",
            summary="FLOPs and compulsory bytes per operator, class or shape.",
            help="1 multiply-accumulate = 2 FLOPs. Shapes come from the trace (record_shapes=True "
            "in torch.profiler, HLO in XPlane), otherwise from the layer manifest. Of nested "
            "operators, only the outermost is counted. For causal attention, flops counts all "
            "scores and executed_flops only unmasked ones.",
            example="traceana flops trace.json.gz --by class",
            function="traceana.report.pages.layers:flops",
            of="trace",
            columns="analyze.flops:COLUMNS analyze.per_step:COLUMNS analyze.per_step:COSTS",
            options=(
                Option(
                    "by",
                    FlopsBy,
                    "One row per operator and pass; per kernel class with its roofline; per "
                    "operator and input shapes with FLOP/s and percent of peak; or per GEMM: M, N, "
                    "K, layout, FLOP/s, bandwidth and arithmetic intensity.",
                ),
                Option(
                    "explain", bool, "List the formulas in use, their derivations and operators."
                ),
                _SUM,
            ),
        ),
        Command(
            name="transfers",
            summary="Copies by direction: calls, bytes, bandwidth, exposed time.",
            help="Exposed: not overlapped with a kernel on the device. --by size groups by power "
            "of two. --collectives shows collectives instead of copies.",
            example="traceana transfers trace.json.gz --by layer",
            function="traceana.report.pages.transfers:transfers",
            of="trace",
            columns="analyze.transfers:KEYS analyze.transfers:COLUMNS",
            options=(
                Option(
                    "by",
                    TransfersBy,
                    "One row per direction, or per direction and operator, layer, range, call, "
                    "step or size.",
                ),
                Option(
                    "collectives",
                    bool,
                    "One row per collective and message size: algorithm and bus bandwidth, "
                    "exposed time.",
                ),
                _SUM,
            ),
        ),
        Command(
            name="lines",
            summary="Time, waits and FLOPs of each line of the program.",
            help="Work of the backward pass is on the line of its forward operator. traceana "
            "record records lines; torch.profiler(with_stack=True) functions; XLA the lines of "
            "its instructions.",
            example="traceana lines runs/mine --by function",
            function="traceana.report.pages.lines:lines",
            of="trace",
            # It goes to the program's clock itself, where it has times of the host.
            recorded=True,
            columns="analyze.lines:COLUMNS analyze.source_listing:COLUMNS analyze.per_step:COLUMNS",
            options=(
                Option(
                    "by",
                    LinesBy,
                    "One row per line, function, file, or stack of lines; stacks are drawn as a "
                    "tree of calls.",
                ),
                Option("source", str, "The lines of this file, with its text.", "FILE"),
                _SUM,
            ),
        ),
        Command(
            name="idle",
            summary="GPU idle time by cause.",
            help="Each gap has one cause; docs/idle.md defines the causes. Also shows "
            "utilization, launch delay, launch-bound kernels, and exposed copies and collectives.",
            example="traceana idle trace.json.gz --by operator",
            function="traceana.report.pages.idle:idle",
            of="trace",
            columns="timeline.idle:KEYS timeline.idle:COLUMNS",
            options=(
                Option(
                    "by",
                    IdleBy,
                    "One row per cause, per cause and operator, range, line or step, or per gap, "
                    "longest first.",
                ),
            ),
        ),
        Command(
            name="critical",
            summary="Critical path of the measured steps.",
            help="It follows stream order, launches, synchronization, event waits between "
            "streams, and threads, from the end of a step to its start. The segments add up to "
            "the step time.",
            example="traceana critical trace.json.gz --by layer",
            function="traceana.report.pages.idle:critical",
            of="trace",
            columns="timeline.critical:KEYS timeline.critical:FIGURES",
            options=(Option("by", CriticalBy, "One row per class, …; segment: in time order."),),
        ),
        Command(
            name="whatif",
            summary="Predicted step time after a change.",
            help="The trace is replayed with the recorded dependencies: launches, streams, event "
            "waits, synchronization and threads.",
            example="traceana whatif trace.json.gz --scenario 'conv x 0.5'",
            function="traceana.report.pages.whatif:whatif",
            of="trace",
            columns="whatif.whatif:COLUMNS",
            options=(
                Option(
                    "scenario",
                    list[str],
                    "'conv x 0.5', 'relu x 0', 'no sync', 'layer:fc* x 0', 'gpu:H100', a name or "
                    "a file; repeatable. Default: the named ones, and half the time of the "
                    "largest classes.",
                    "TEXT|FILE.toml",
                ),
                Option("sweep", bool, "Also with factors from 0 to 1."),
                Option("replay", bool, "Replay without a change; show its error."),
            ),
        ),
        Command(
            name="memory",
            summary="Allocated memory: peak per device, contents, growth per step.",
            help="Needs allocator events: profile_memory=True in torch.profiler, or a snapshot of "
            "torch.cuda.memory._dump_snapshot().",
            example="traceana memory trace.json.gz --by layer",
            function="traceana.report.pages.memory:memory",
            of="trace",
            columns="analyze.memory:DEVICES",
            options=(
                Option(
                    "by",
                    MemoryBy,
                    "One row per device, per layer, operator, line or stack at the peak, per step, "
                    "per time slice, per convolution workspace, or per memory pool of a snapshot.",
                ),
            ),
            needs=("memory", "memory_blocks"),
        ),
        Command(
            name="samples",
            summary="Sampled counters: SM activity, bandwidth, clocks, power.",
            help="Needs counters that were sampled while the program ran: nsys profile "
            "--gpu-metrics-devices=all, or counter events in torch.profiler's JSON. Means are "
            "weighted by time. Times are as recorded.",
            example="traceana samples report.sqlite --by class",
            function="traceana.report.pages.samples:samples",
            of="trace",
            recorded=True,
            pictures=False,
            columns="analyze.samples:COLUMNS analyze.samples:BY_STEP analyze.samples:BY_CLASS "
            "analyze.samples:BY_LAYER",
            options=(
                Option(
                    "by",
                    SamplesBy,
                    "One row per counter and device; per step; or per class or layer of work, from "
                    "runs on the device that are longer than two sampling intervals.",
                ),
            ),
            needs=("samples",),
        ),
        Command(
            name="ranks",
            summary="Ranks of a distributed job: steps, waits, stragglers.",
            help="Every file is read in a process of its own; only summaries are kept, so that "
            "any number of ranks fits in memory. The slowest ranks come first.",
            example="traceana ranks job/",
            function="traceana.report.pages.ranks:ranks",
            of="traceana",
            columns="job.ranks:COLUMNS",
            own=True,
        ),
        Command(
            name="diff",
            summary="Changes from baseline A to candidate B, with intervals.",
            help="A and B may differ in commit, batch, GPU or framework. Layers are paired by "
            "path, otherwise by type, shape and order. Times are per step, without warm-up; rows "
            "add up to the step time. Of two memory snapshots: growth of live memory by line.",
            example="traceana diff before.json.gz after.json.gz --fail-if-slower 3%",
            function="traceana.report.pages.diff:diff",
            of="traceana",
            columns="comparison.diff:PAIRS comparison.columns:FIGURES comparison.diff:RATES "
            "comparison.columns:KEYS comparison.diff:COPIES",
            options=(Option("by", DiffBy, "One row per layer, class … of both runs."),),
            own=True,
        ),
        Command(
            name="history",
            summary="Step time of many runs in order, and the changes of its level.",
            help="A folder of bundles or runs keeps a row for each, so that none is opened twice. "
            "Runs that differ in device, driver, framework, batch, precision, shapes or profiler "
            "are told apart. Each change has its interval, its first run, and the first lines of "
            "diff between the runs before and after.",
            example="traceana history runs/ --fail-if-slower 3%",
            function="traceana.report.pages.history:history",
            of="traceana",
            columns="comparison.history:RUNS comparison.history:ITEMS",
            options=(
                Option("by", HistoryBy, "The step of each run, or the time of each layer, …."),
                Option("order", HistoryOrder, "By date, commit, label, or as given."),
            ),
            own=True,
        ),
        Command(
            name="compare",
            summary="Two or more runs side by side: steps, layers, GEMMs, copies.",
            help="Layers are aligned as in diff. Values are per step, without warm-up, if all "
            "runs have steps; otherwise of whole captures. Ratios are to the first run. CSV, TSV, "
            "JSON and Parquet have one row per run and item, with both values.",
            example="traceana compare pytorch.json.gz jax.xplane.pb --by layer",
            function="traceana.report.pages.compare:compare",
            of="traceana",
            columns="comparison.run_columns:SUMMARY comparison.columns:KEYS "
            "comparison.run_columns:EPILOGUE comparison.run_columns:LAYERS "
            "comparison.run_columns:COPIES",
            options=(Option("by", CompareBy, "One row per run and layer, class …."),),
            own=True,
        ),
        Command(
            name="study",
            summary="Reproduce a published study from recorded runs.",
            help="frameworks: step time by layer. epilogues: bias and ReLU by library. "
            "algorithms, layerwise: convolution algorithms by batch size, by layer. scaling: "
            "speedup by number of devices. batch: time per image by batch size. sgemm: GEMM time "
            "by kernel. transfers: copies. ratio: relative speed by network.",
            example="traceana study batch runs/",
            own=True,
            columns="study.step_times:BATCH study.step_times:RATIO study.step_times:SCALING "
            "study.trace_tables:FRAMEWORKS study.trace_tables:EPILOGUES study.trace_tables:SGEMM "
            "study.trace_tables:TRANSFERS study.timed_convolutions:BY_BATCH "
            "study.timed_convolutions:BY_LAYER",
        ),
        Command(
            name="classify",
            summary="Classify kernel names: one row per name, in the given order.",
            columns="analyze.classes:CLASSIFIED analyze.classes:REASONS",
            example="traceana classify volta_sgemm_128x64_nn",
            function="traceana.report.pages.kernels:classify",
            of="traceana",
            own=True,
        ),
        Command(
            name="save",
            summary="Save the trace as a bundle, which opens faster.",
            help="A bundle is a directory of Parquet files, with the layers, steps, classes and "
            "recommendations. Times are kept as recorded. With --step it is of these steps, and "
            "opens with them selected.",
            example="traceana save trace.json.gz -o bundle",
            function="traceana.advise.saved:save",
            of="trace",
            needs=(),
            recorded=True,
            own=True,
        ),
        Command(
            name="export",
            summary="Write the trace for another tool, or a part of it as a trace again.",
            help="Perfetto and chrome://tracing: all events, with tracks of layers, idle causes "
            "and the critical path. speedscope: the time of the layers as a flame graph. DuckDB "
            "(the extra duckdb): the tables of the trace, idle gaps and the critical path, with "
            "their meanings. Another .json: a Kineto file with the events of the selected steps. "
            "Times are as recorded, with the profiler.",
            example="traceana export trace.json.gz -o trace.perfetto.json.gz",
            function="traceana.report.exports:export",
            of="trace",
            recorded=True,
            own=True,
        ),
        Command(
            name="record",
            summary="Record a training script or network under a profiler.",
            help="The script runs once, to its own end, with its own output, files and exit "
            "status; some of its steps are profiled, others are timed without the profiler. The "
            "folder has the trace, the layer manifest, the environment and the step times; every "
            "command opens it. See docs/record.md.",
            example="traceana record -o run -- python train.py",
            own=True,
        ),
        Command(
            name="mcp",
            summary="Serve the traces of a folder to a coding agent (MCP).",
            help="The server reads standard input and writes standard output. Its tools list and "
            "open traces, and return the JSON of the commands; they write nothing. Needs the "
            "extra mcp.",
            example="traceana mcp traces/",
            own=True,
        ),
        Command(
            name="doctor",
            summary="Show versions, extras, nsys, cache and configuration.",
            own=True,
        ),
    )
}
"""The commands by name, in the order of ``--help``."""


def declared_columns(names: str) -> list[Column]:
    """Return the columns that ``names`` declare, as in :class:`Command`, without repetitions.

    Their modules are imported here.
    """
    columns: dict[str, Column] = {}
    for name in names.split():
        module, _, attribute = name.partition(":")
        declared = getattr(import_module(f"traceana.{module}"), attribute)
        for column in declared.values() if isinstance(declared, dict) else declared:
            columns.setdefault(column.name, column)
    return list(columns.values())


def _check(option: Option, value: Any) -> None:
    if value not in option.words:
        like = suggested(str(value), option.words)
        raise NoSuchSelectionError(f"{option.name}={value!r}{like}: use {', '.join(option.words)}")


@cache
def function_of(name: str) -> Callable[..., Any]:
    """Return the function of the command ``name``, which is imported here.

    It raises ``TypeError`` on an unknown option and
    :class:`~traceana.errors.NoSuchSelectionError` on a word that an option does not take; both list
    what there is.
    """
    command = COMMANDS[name]
    module, _, attribute = command.function.partition(":")
    function = getattr(import_module(module), attribute)
    parameters = inspect.signature(function).parameters
    known = [one.name for one in parameters.values() if one.kind == one.KEYWORD_ONLY]

    @wraps(function)
    def run(*given: Any, **options: Any) -> Any:
        for option in options:
            if option not in parameters:
                raise TypeError(
                    f"{name}() has no option {option!r}{suggested(option, known)}: "
                    + (f"options: {', '.join(known)}" if known else "it has none")
                )
        for one in command.options:
            given_word = options.get(one.name, parameters[one.name].default)
            if one.words and given_word != parameters[one.name].default:
                _check(one, given_word)
        if command.of == "trace" and "activities" in command.needs and given[0].is_snapshot:
            from traceana.analyze.summaries import needs_timeline

            needs_timeline(given[0], name)
        if command.of == "trace" and not command.recorded:
            from traceana.whatif.program import without_profiler

            given = without_profiler(given[0]), *given[1:]
        return function(*given, **options)

    run.__module__, run.__name__, run.__qualname__ = "traceana", name, name
    if not command.own:
        listed = "\n".join(f"``{one.name}``: {one.help}" for one in command.options)
        run.__doc__ = "\n\n".join(part for part in (command.summary, command.help, listed) if part)
    return run
