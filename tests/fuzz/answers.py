"""Runs every command's analysis on one input, and classes what came of it."""

from __future__ import annotations

import contextlib
import hashlib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, get_args
from unittest import mock

import traceana
import traceana.readers
from tests.fuzz.judges import judged
from tests.fuzz.mutations import Input
from tests.fuzz.roles import only_read, opened
from tests.support.traces import with_methods
from traceana.cli.opening import exit_code
from traceana.cli.options import Reading
from traceana.comparison.diff import VIEWS
from traceana.errors import ExitCode, ManifestWarning, NoSuchSelectionError, TraceanaError
from traceana.readers.chrome.event_decoder import EventDecoder, UndecodableError
from traceana.readers.kineto.scan import ScanningDecoder
from traceana.report.render import Format, render
from traceana.report.result import CommandResult
from traceana.timeline.work import any_work
from traceana.trace import Trace
from traceana.trace.schema import TABLES
from traceana.vocabulary.option_words import (
    CompareBy,
    CriticalBy,
    IdleBy,
    LayersBy,
    LinesBy,
    MemoryBy,
    TransfersBy,
)

COUNTED: Final = (
    "activities",
    "calls",
    "ops",
    "ranges",
    "links",
    "memory",
    "counters",
    "samples",
    "summary",
)
SUMMED: Final = ("activities", "calls", "ops", "ranges")


@dataclass
class Facts:
    """The rows and nanoseconds of each table as the reader gave them, and its ledger."""

    rows: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    ledger: list[list[Any]] = field(default_factory=list)
    problems: int = 0
    events: int | None = None
    accounted: int = 0
    truncated: bool = False

    def add(self, trace: Trace) -> None:
        """Add what a reader returned."""
        for name in COUNTED:
            frame = trace.tables[name]
            self.rows[name] = self.rows.get(name, 0) + frame.height
            if name in SUMMED:
                # Python's integers do not wrap.
                total = sum(frame["duration"].drop_nulls().to_list())
                self.sums[name] = self.sums.get(name, 0) + total
            if name == "counters":
                known = sum(frame[column].count() for column in frame.columns)
                self.sums[name] = self.sums.get(name, 0) + known
        self.judge(trace)
        if trace.meta.events is not None:
            lost = int(trace.tables.ledger.filter(~trace.tables.ledger["kept"])["count"].sum())
            self.events = (self.events or 0) + trace.meta.events
            self.accounted += sum(trace.tables[name].height for name in COUNTED) + lost

    def judge(self, trace: Trace) -> None:
        """Take the ledger of ``trace``."""
        ledger = trace.tables.ledger.select(
            "reason", "severity", "table", "kept", "count", "detail"
        )
        self.ledger = sorted((list(row) for row in ledger.iter_rows()), key=repr)
        self.problems = int((ledger["severity"] == "problem").sum())
        self.truncated |= trace.meta.truncated


@dataclass
class Outcome:
    """What came of one input.

    ``kind`` is ``read``, ``ledger``, ``refused``, ``traceback``, ``abort``, ``hang``, ``memory`` or
    ``silent``. ``error`` is the class of the exception, ``frame`` the innermost line of traceana in
    its traceback, ``command`` the command it came from.
    """

    kind: str
    command: str = "open"
    error: str = ""
    frame: str = ""
    message: str = ""
    code: int = 0
    facts: Facts = field(default_factory=Facts)
    seen: str = ""

    @property
    def failed(self) -> bool:
        """Whether the promise is broken."""
        return self.kind not in ("read", "ledger", "refused")

    @property
    def group(self) -> tuple[str, str, str]:
        """What failures of one cause share."""
        return self.kind, self.error, self.frame or self.message

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def written(given: Input, folder: Path) -> Path:
    """Write the files of ``given`` to ``folder`` and return the path to open."""
    for name, content in given.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
    return folder / given.seed.opened


def answered(
    given: Input,
    folder: Path,
    number: int,
    reference: Facts | None,
    done: set[str],
    *,
    analyze: bool = True,
) -> Outcome:
    """Return the outcome of one input, written to the empty ``folder``.

    ``reference`` are the facts of the seed. ``done`` has the fingerprints of traces that every
    command was run on: one with the same tables is not analyzed again. Without ``analyze``, the
    input is only read.
    """
    at = ["open"]
    facts = Facts()
    path = written(given, folder)
    seen = ""
    try:
        with _strict_warnings():
            with _readers_watched(facts):
                read = only_read(given, path)
            if read is not None and not facts.rows:
                facts.add(read)  # a bundle has no reader
            elif read is not None:
                facts.judge(read)  # files of a folder may be skipped
            of_events = given.seed.format in _OTHER_PATH and number % 3 == 0
            if read is not None and (analyze or of_events):
                seen = _fingerprint(read)
            if of_events:
                at[0] = "event by event"
                _same_by_the_other_path(path, seen)
                at[0] = "open"
            if analyze and (read is None or seen not in done):
                trace = opened(given, path)
                if trace is not None:
                    _analyzed(with_methods(trace), number, folder / "out", at)
                    done.add(seen)
    except TraceanaError as error:
        return _refused(error, at[0], facts)
    except MemoryError as error:
        return _raised(error, at[0], facts, "memory")
    except BaseException as error:  # a panic of polars is no Exception  # noqa: BLE001
        panic = type(error).__name__ == "PanicException"
        return _raised(error, at[0], facts, "abort" if panic else "traceback")
    lost = _silent(given, facts, reference)
    if lost:
        return Outcome("silent", message=lost, frame=lost.split(":")[0], facts=facts)
    kind = "ledger" if facts.problems or facts.truncated else "read"
    return Outcome(kind, facts=facts, seen=seen if analyze else "")


_READ: Final = traceana.readers.read
_OTHER_PATH: Final = ("kineto", "chrome", "mxnet")


def _same_by_the_other_path(path: Path, seen: str) -> None:
    """Read the file with every event decoded by itself; raise where the tables are others.

    A reader decodes many events at once, by the compiled scanner where there is one, and one by one
    only where that fails.
    """

    def refuses(*_: Any) -> Any:
        raise UndecodableError

    with (
        mock.patch.object(EventDecoder, "decode", refuses),
        mock.patch.object(ScanningDecoder, "decode", refuses),
    ):
        if _fingerprint(_READ(path)) != seen:
            raise AssertionError("events decoded one by one give other tables")


def _analyzed(trace: traceana.Trace, number: int, out: Path, at: list[str]) -> None:
    """Run every command; ``at`` holds the one that is running."""
    for command, run in _commands(trace, number, out):
        at[0] = command
        # What needs a timeline refuses a printed summary; the next commands may not.
        with contextlib.suppress(NoSuchSelectionError):
            run()


def _refused(error: TraceanaError, command: str, facts: Facts) -> Outcome:
    code, message = error.exit_code, str(error)
    outcome = Outcome("refused", command, type(error).__name__, "", message, int(code), facts)
    if code is ExitCode.INTERNAL or not message or len(message.splitlines()) != 1:
        outcome.kind, outcome.frame = "traceback", _innermost(error.__traceback__)
        outcome.error += " (not one line)"
    # The trace was opened: a command refuses a whole trace only for having nothing to show.
    elif command != "open" and code is not ExitCode.EMPTY_SELECTION:
        outcome.kind, outcome.frame = "traceback", _innermost(error.__traceback__)
    return outcome


def _raised(error: BaseException, command: str, facts: Facts, kind: str) -> Outcome:
    message = " ".join(str(error).split())[:300]
    frame = _innermost(error.__traceback__)
    return Outcome(kind, command, type(error).__name__, frame, message, 1, facts)


def _innermost(trace: TracebackType | None) -> str:
    ours = [
        f"{Path(one.filename).as_posix().split('/traceana/', 1)[-1]}:{one.lineno} {one.name}"
        for one in traceback.extract_tb(trace)
        if "/src/traceana/" in one.filename
    ]
    return ours[-1] if ours else ""


@contextmanager
def _strict_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ManifestWarning)
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@contextmanager
def _readers_watched(facts: Facts) -> Iterator[None]:
    """Add to ``facts`` what every reader returns, before it is attributed."""
    real = traceana.readers.read

    def read(*given: Any) -> Trace:
        trace = real(*given)
        facts.add(trace)
        return trace

    with mock.patch.object(traceana.readers, "read", read):
        yield


def _fingerprint(trace: Trace) -> str:
    digest = hashlib.sha256()
    for name in TABLES:
        # Of values: the bytes of equal columns may differ.
        digest.update(repr(trace.tables[name].rows()).encode("utf-8", "surrogatepass"))
    meta = trace.meta
    digest.update(repr((meta.format, meta.framework, meta.properties, trace.manifest)).encode())
    return digest.hexdigest()


def _shown(result: CommandResult, number: int) -> None:
    """Render the page for the terminal, as JSON, and in one of the other formats."""
    page = result.page(limit=result.screenful)
    render(page, Format.TABLE)
    full = result.page()
    render(full, Format.JSON)
    render(full, (Format.CSV, Format.MARKDOWN, Format.TSV, Format.PARQUET)[number % 4])
    for name, total in result.totals.items():
        if (
            name in result.frame.columns
            and name.endswith("_ns")
            and total < 0 <= _least(result, name)
        ):
            raise ArithmeticError(f"the total of {name} is {total}")


def _least(result: CommandResult, name: str) -> float:
    value = result.frame[name].min()
    return float(value) if isinstance(value, int | float) else 0


def _one(options: Any, number: int) -> Any:
    values = get_args(options)
    return values[number % len(values)]


def _commands(
    trace: traceana.Trace, number: int, out: Path
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every command with a function that runs it; their options vary with ``number``."""

    def show(result: Callable[[], CommandResult]) -> Callable[[], None]:
        return lambda: _shown(result(), number)

    yield "exit code", lambda: exit_code(trace, _READING)
    yield "info", show(trace.info)
    yield "report", show(trace.report)
    yield "kernels", show(trace.kernels)
    yield "kernels --unclassified", show(lambda: trace.kernels(unclassified=True))
    yield "layers", show(trace.layers)
    by = _one(LayersBy, number)
    depth = (None, 1)[number % 2]
    yield "layers --by", show(lambda: trace.layers(by=by, depth=depth, direction=True))
    yield "flops", show(trace.flops)
    yield "flops --by class", show(lambda: trace.flops(by="class"))
    yield "flops --by shape", show(lambda: trace.flops(by="shape"))
    yield "kernels --by shape", show(lambda: trace.kernels(by="shape"))
    yield "flops --explain", show(lambda: trace.flops(explain=True))
    of_copies = _one(TransfersBy, number)
    yield f"transfers --by {of_copies}", show(lambda: trace.transfers(by=of_copies))
    yield "transfers --collectives", show(lambda: trace.transfers(collectives=True))
    of_lines = _one(LinesBy, number)
    yield f"lines --by {of_lines}", show(lambda: trace.lines(by=of_lines))
    of_idle = _one(IdleBy, number)
    yield f"idle --by {of_idle}", show(lambda: trace.idle(by=of_idle))
    of_path = _one(CriticalBy, number)
    yield f"critical --by {of_path}", show(lambda: trace.critical(by=of_path))
    of_memory = _one(MemoryBy, number)
    yield f"memory --by {of_memory}", show(lambda: trace.memory(by=of_memory))
    yield "advise", show(trace.advise)
    if any_work(trace):
        of_diff = VIEWS[number % len(VIEWS)]
        yield "diff", lambda: _diff(trace, of_diff, number)
        if number % 4 == 0:
            of_runs = _one(CompareBy, number // 4)
            yield "compare", show(lambda: traceana.compare([trace, trace], by=of_runs))
    if trace.tables.steps.height:
        step = trace.tables.steps["number"][number % trace.tables.steps.height]
        if step is not None:
            yield "report --step", show(lambda: trace.select(steps=[step]).kernels())
    yield "save", lambda: _saved(trace, out)


def _diff(trace: Trace, by: Any, number: int) -> None:
    _shown(traceana.diff(trace, trace), number)
    _shown(traceana.diff(trace, trace, by=by), number)


def _saved(trace: traceana.Trace, out: Path) -> None:
    again = traceana.open(trace.save(out))
    for name in TABLES:
        if not again.tables[name].equals(trace.tables[name]):
            raise AssertionError(f"{name} is another after it was saved")


_READING: Final = Reading()


def _silent(given: Input, facts: Facts, reference: Facts | None) -> str:
    """Return what is lost without a word; the empty text where nothing is.

    Three laws. Every event that a reader counted is in a table or in the ledger. The events of a
    sound file, counted independently, are those that the reader counted. A file that is damaged
    and not sound any more has the seed's rows and nanoseconds, or its loss is in the ledger.
    """
    if facts.events is not None and facts.events != facts.accounted:
        return f"conservation: {facts.events} events, {facts.accounted} accounted for"
    content = given.files[given.damaged]
    if content is None or reference is None or given.seed.role not in ("trace", "counters"):
        return ""
    judgement = judged(given.damaged, content, given.seed.content)
    if judgement.broken is None:
        one_file = len(given.seed.files) == 1 and facts.events is not None
        if one_file and judgement.events not in (None, facts.events):
            return f"events: {judgement.events} in the file, {facts.events} read"
        return ""
    if not given.damage or facts.truncated or _more(facts.ledger, reference.ledger):
        return ""
    differing = [
        f"{name} {reference.rows.get(name)} rows, {facts.rows.get(name)} read"
        for name in COUNTED
        if facts.rows.get(name) != reference.rows.get(name)
    ]
    # Pages of Parquet have no checksums: a changed byte of a number is another number.
    if not differing and not given.damaged.endswith(".parquet"):
        differing = [
            f"{name} {reference.sums.get(name)} in all, {facts.sums.get(name)} read"
            for name in (*SUMMED, "counters")
            if facts.sums.get(name) != reference.sums.get(name)
        ]
    return f"damage ({judgement.broken}): {'; '.join(differing)}" if differing else ""


def _more(ledger: list[list[Any]], of_seed: list[list[Any]]) -> bool:
    """Return whether ``ledger`` has an entry that the seed's does not have."""
    return bool(Counter(map(repr, ledger)) - Counter(map(repr, of_seed)))
