"""Ranges around the executed lines of the program's own files."""

from __future__ import annotations

import gzip
import hashlib
import json
import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest

from tests.record.conftest import Record, notes
from tests.support.frameworks import needs
from traceana.enrich.ranges import LINE_MARK
from traceana.record.inside import lines as inside
from traceana.record.inside.lines import MARK, LineRanges, calling_lines
from traceana.record.inside.process_report import Report, Settings
from traceana.runs import read_run
from traceana.runs.run_files import SOURCE_FOLDER
from traceana.runs.source_files import LISTING, source_lines


class Notes(Report):
    """A report that is written nowhere."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Log:
    """Ranges of ``program.py`` by thread, in their order: indented by their depth."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.report = Notes()
        self.opened: dict[int, list[str]] = {}
        self.open: dict[int, list[str]] = {}
        self.lines = LineRanges(self._range, Settings(str(folder), lines=True), self.report)

    def _range(self, text: str) -> Any:
        log = self

        class Range:
            def __enter__(self) -> None:
                thread = threading.get_ident()
                name = text.removeprefix(MARK)
                open_, opened = log.open.setdefault(thread, []), log.opened.setdefault(thread, [])
                line = name.removeprefix("program.py(").replace("):", "")
                opened.append("  " * len(open_) + line)
                open_.append(name)

            def __exit__(self, *_: object) -> None:
                # Closed in its own thread, the last one first.
                assert log.open[threading.get_ident()].pop() == text.removeprefix(MARK)

        return Range()

    @property
    def of_this_thread(self) -> list[str]:
        return self.opened.get(threading.get_ident(), [])


@pytest.fixture(autouse=True)
def not_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file is none of the program's."""
    name_of = inside._OwnFiles.name_of

    def name(files: inside._OwnFiles, path: str) -> str | None:
        return None if path == __file__ else name_of(files, path)

    monkeypatch.setattr(inside._OwnFiles, "name_of", name)


Program = Callable[..., Any]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return a function that returns the function ``main`` of a file with this content."""
    monkeypatch.chdir(tmp_path)

    def load(content: str, name: str = "program.py") -> Any:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        names: dict[str, Any] = {}
        exec(compile(content, str(path), "exec"), names)  # noqa: S102
        return names["main"]

    return load


def logged(folder: Path, main: Callable[[], Any]) -> list[str]:
    """Return the ranges of a call of ``main``; all of them are closed at the end."""
    log = Log(folder)
    log.lines.begin()
    try:
        main()
    finally:
        log.lines.end()
    assert log.report.notes == []
    assert not any(log.open.values())
    assert sys.gettrace() is None
    return log.of_this_thread


NESTED = """
def inner(x):
    y = abs(x)
    z = 1

    return abs(z)

def main():
    inner(
        abs(3)
    )
    a = 1
    for i in range(2):
        inner(i)
"""


def test_lines_are_nested_and_those_without_calls_have_none(
    tmp_path: Path, program: Program
) -> None:
    assert logged(tmp_path, program(NESTED)) == [
        # A call begins in its first line, which loads the function.
        "9 main",
        "10 main",
        "9 main",
        "  3 inner",
        "  6 inner",
        "13 main",
        "14 main",
        "  3 inner",
        "  6 inner",
        "13 main",
        "14 main",
        "  3 inner",
        "  6 inner",
        "13 main",
    ]


GENERATOR = """
def values():
    for i in range(2):
        yield abs(i)
    abs(0)

def main():
    for value in values():
        abs(value)
"""


def test_a_generator_has_no_range_between_its_values(tmp_path: Path, program: Program) -> None:
    assert logged(tmp_path, program(GENERATOR)) == [
        "8 main",
        "  3 values",
        "  4 values",
        "9 main",
        "8 main",
        # It goes on within its line.
        "  4 values",
        "  3 values",
        "  4 values",
        "9 main",
        "8 main",
        "  4 values",
        "  3 values",
        "  5 values",
    ]


DELEGATING = """
def values():
    yield abs(1)
    yield abs(2)

def delegating():
    yield from values()

def main():
    abs(sum(delegating()))
"""


def test_a_generator_goes_on_in_the_line_that_it_left(tmp_path: Path, program: Program) -> None:
    assert logged(tmp_path, program(DELEGATING)) == [
        "10 main",
        *("  7 delegating", "    3 values"),
        *("  7 delegating", "    3 values", "    4 values"),
        *("  7 delegating", "    4 values"),
    ]


EXCEPTION = """
import json
class Failed(Exception):
    def __init__(self, text):
        super().__init__(str(text))
def fail(depth):
    if not depth:
        raise Failed("deep")
    fail(depth - 1)

def main():
    try:
        fail(2)
    except Failed:
        abs(1)
    try:
        json.loads("{")
    except ValueError:
        abs(2)
    abs(3)
"""


def test_an_exception_closes_what_was_open(tmp_path: Path, program: Program) -> None:
    assert logged(tmp_path, program(EXCEPTION)) == [
        "13 main",
        "  7 fail",
        "  9 fail",
        "    7 fail",
        "    9 fail",
        "      7 fail",
        "      8 fail",
        "        5 Failed.__init__",
        *("14 main", "15 main"),
        "17 main",
        *("18 main", "19 main"),
        "20 main",
    ]


SAME_LINE = """
def main():
    square = lambda x: pow(x, 2)
    while square(0): pass
    a = [abs(x) for x in range(3)]
    for i in range(2): square(i)
"""


def test_a_line_that_is_repeated_keeps_its_range(tmp_path: Path, program: Program) -> None:
    square = "  3 main.<locals>.<lambda>"
    made = [] if sys.version_info >= (3, 12) else ["  5 main.<locals>.<listcomp>"]
    assert logged(tmp_path, program(SAME_LINE)) == [
        *("4 main", square),
        *("5 main", *made),
        *("6 main", square, square),
    ]


def test_code_of_others_has_none(tmp_path: Path, program: Program) -> None:
    library = program("def main(f):\n    f()\n", "site-packages/library.py")
    generated: dict[str, Any] = {}
    exec("def main(f):\n    f()\n", generated)  # noqa: S102
    own = program("def main():\n    return [abs(1)]\n")
    expected = ["2 main"] * 2
    if sys.version_info < (3, 12):
        assert library.__code__.co_filename.endswith("library.py")
    assert logged(tmp_path, lambda: (library(own), generated["main"](own))) == expected


def test_a_thread_has_a_stack_of_its_own(tmp_path: Path, program: Program) -> None:
    main = program("def inner():\n    abs(1)\n\ndef main():\n    inner()\n    abs(2)\n")
    log = Log(tmp_path)
    log.lines.begin()
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    main()
    log.lines.end()
    of_both = [*log.opened.values()]
    expected = ["5 main", "  2 inner", "6 main"]
    assert of_both.count(expected) == 2
    assert not any(log.open.values())
    assert getattr(threading, "_trace_hook", None) is None


def test_a_frame_that_runs_already_has_its_line(tmp_path: Path, program: Program) -> None:
    main = program(
        "def run(begin, step):\n    begin()\n    step(abs(1))\n\n"
        "def main(begin, step, end):\n    run(begin, step)\n    end()\n    abs(2)\n"
    )
    log = Log(tmp_path)
    at_step: list[str] = []

    def step(_: int) -> None:
        log.lines.between(lambda: at_step.extend(log.open[threading.get_ident()]))

    main(log.lines.begin, step, log.lines.end)
    assert log.of_this_thread == [
        *("6 main", "  2 run", "  3 run"),
        # The end of a step closes all and opens them again.
        *("6 main", "  3 run"),
        "7 main",
    ]
    assert at_step == []
    assert not any(log.open.values())


def test_a_child_process_has_no_ranges(tmp_path: Path, program: Program) -> None:
    """What runs in a forked child first; a test forks no process that has frameworks."""
    main = program("def main():\n    abs(1)\n    abs(2)\n")
    log = Log(tmp_path)
    log.lines.begin()
    before = len(log.of_this_thread)
    log.lines._forked()
    main()
    assert len(log.of_this_thread) == before
    log.lines.end()


def test_lines_that_run_too_often_are_recorded_by_function_or_by_the_line_that_calls(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "_JUDGED_AT", 200)
    monkeypatch.setattr(inside, "_FAST_NS", 10**9)
    main = program(
        "def tiny(i):\n    j = abs(i)\n    return abs(j)\n\n"
        "def loop():\n    for i in range(300):\n        abs(i)\n        abs(i)\n\n"
        "def main():\n    loop()\n    loop()\n    for i in range(300):\n        tiny(i)\n"
        "    return [abs(i) for i in range(1000)]\n"
    )
    log = Log(tmp_path)
    log.lines.begin()
    main()
    assert not any(log.open.values())
    log.lines.end()
    log.lines.keep_files()
    opened = [name.strip() for name in log.of_this_thread]
    # The first call of the loop line by line, then as a whole, as its second call.
    assert 100 < sum(name.endswith(" loop") for name in opened) <= 202
    assert opened.count("5 loop") == 2
    # Of a small function the line that calls it remains.
    assert 0 < sum(name.endswith(" tiny") for name in opened) <= 200
    assert opened.count("15 main.<locals>.<listcomp>") <= 1
    (note,) = log.report.notes
    assert "recorded by function, or by the line that calls it: " in note
    assert "program.py(5): loop" in note


def test_after_the_budget_of_lines_functions_are_recorded_and_then_nothing(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "MOST_RANGES", 500)
    main = program(
        "def f(i):\n    abs(i)\n    return abs(i)\n\n"
        "def main():\n    for i in range(COUNT):\n        f(i)\n"
    )
    for count, then in ((200, "functions"), (1000, "nothing")):
        main.__globals__["COUNT"] = count
        log = Log(tmp_path)
        log.lines.begin()
        main()
        assert not any(log.open.values())
        log.lines.end()
        log.lines.keep_files()
        opened = [name.strip() for name in log.of_this_thread]
        assert opened[:4] == ["6 main", "7 main", "2 f", "3 f"]
        functions = opened[500:]
        assert set(functions) == {"1 f", "5 main"}
        assert functions.count("5 main") == 1
        assert functions.count("1 f") == (499 if then == "nothing" else 200 - 125)
        (note,) = log.report.notes
        assert note == (
            "lines of the program: only the first 500 of the profiled steps are recorded, then "
            + then
        )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="lines come from sys.monitoring")
def test_another_trace_function_is_left_alone(tmp_path: Path, program: Program) -> None:
    main = program("def main():\n    abs(1)\n")
    log = Log(tmp_path)

    def other(*_: Any) -> None:
        return None

    sys.settrace(other)
    try:
        log.lines.begin()
        main()
        log.lines.end()
        assert sys.gettrace() is other
    finally:
        sys.settrace(None)
    assert log.opened == {}
    assert log.report.notes == [
        "lines of the program not recorded: a debugger or coverage traces it"
    ]


def test_a_failure_of_the_ranges_does_not_reach_the_program(
    tmp_path: Path, program: Program
) -> None:
    main = program("def main():\n    abs(1)\n    return abs(2)\n")
    opened: list[str] = []

    def failing(text: str) -> Any:
        opened.append(text)
        if len(opened) > 2:
            raise OSError("no ranges")
        return Log(tmp_path)._range(text)

    # As if it were of a framework.
    failing.__globals__["__name__"], name = "torch.test", failing.__globals__["__name__"]
    try:
        report = Notes()
        lines = LineRanges(failing, Settings(str(tmp_path), lines=True), report)
        lines.begin()
        assert main() == 2
        lines.end()
    finally:
        failing.__globals__["__name__"] = name
    assert len(opened) == 3
    assert report.notes == ["lines of the program: OSError: no ranges"]


def test_lines_that_call_nothing() -> None:
    content = "def f(a, b):\n x = a\n y = (x,\n  b)\n if x is None:\n  z = 1\n a.b\n return y\n"
    names: dict[str, Any] = {}
    exec(content, names)  # noqa: S102
    assert calling_lines(names["f"].__code__) == {7}


def test_files_are_kept_up_to_a_size(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "def main():\n    abs(1)\n"
    outside = tmp_path / "outside" / "other.py"
    folder = tmp_path / "program"
    folder.mkdir()
    mains = [
        program(content, "program/train.py"),
        program(content, "program/package/model.py"),
        program(content + "#" * inside._LARGEST, "program/large.py"),
        program(content, str(outside)),
    ]
    monkeypatch.chdir(folder)
    log = Log(tmp_path)
    log.lines = LineRanges(log._range, Settings(str(tmp_path), lines=True, source=True), log.report)
    log.lines.begin()
    for main in mains:
        main()
    log.lines.end()
    log.lines.keep_files()
    listing = json.loads((tmp_path / "source" / "files.json").read_text())
    kept = listing["files"]
    assert kept == {
        "train.py": "train.py",
        "package/model.py": "package/model.py",
        str(outside): f"absolute{outside}",
    }
    assert (tmp_path / "source" / kept[str(outside)]).read_text() == content
    assert set(listing["sha256"].values()) == {hashlib.sha256(content.encode()).hexdigest()}
    assert log.report.notes == []


def test_without_copies_only_digests_are_kept(tmp_path: Path, program: Program) -> None:
    main = program("def main():\n    abs(1)\n", "train.py")
    log = Log(tmp_path)
    log.lines = LineRanges(
        log._range, Settings(str(tmp_path), lines=True, source=False), log.report
    )
    log.lines.begin()
    main()
    log.lines.end()
    log.lines.keep_files()
    assert [path.name for path in (tmp_path / "source").iterdir()] == ["files.json"]
    listing = json.loads((tmp_path / "source" / "files.json").read_text())
    assert set(listing["files"].values()) == {None}
    assert len(listing["sha256"]) == 1


def test_a_notebook_s_cell_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def main():\n    abs(1)\n"
    path = "/tmp/ipykernel_77/1234.py"
    monkeypatch.setitem(linecache.cache, path, (len(text), None, text.splitlines(True), path))
    monkeypatch.setattr(sys.modules["__main__"], "In", ["", "x = 1", text, "y"], raising=False)
    namespace: dict[str, Any] = {}
    exec(compile(text, path, "exec"), namespace)  # noqa: S102
    log = Log(tmp_path)
    log.lines = LineRanges(log._range, Settings(str(tmp_path), lines=True, source=True), log.report)
    log.lines.begin()
    namespace["main"]()
    log.lines.end()
    log.lines.keep_files()
    assert log.of_this_thread == ["<cell 2>(2 main"]
    assert source_lines(tmp_path, ["<cell 2>"]) == {"<cell 2>": text.splitlines()}


TORCH = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.last = torch.nn.Linear(32, 4)

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(x)
        return self.last(x)

def batches():
    for number in range(30):
        yield torch.randn(8, 16)

def main():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for x in batches():
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    print(value)

main()
"""
LINE_OF = {
    "aten::randn": "my_train.py(20): batches",
    "aten::relu": "my_train.py(15): Net.forward",
    "aten::square": "my_train.py(26): main",
    "aten::mean": "my_train.py(26): main",
    "Optimizer.zero_grad#SGD.zero_grad": "my_train.py(27): main",
    "AddmmBackward0": "my_train.py(28): main",
    "Optimizer.step#SGD.step": "my_train.py(29): main",
    "aten::item": "my_train.py(30): main",
}


def test_the_reading_side_has_the_same_names() -> None:
    """What runs in the recorded process imports nothing of traceana's other packages."""
    assert MARK == LINE_MARK
    assert (inside.FOLDER, inside.LISTING) == (SOURCE_FOLDER, LISTING)


def _recorded_twice(record: Record, program: Path, folder: Path) -> CompletedProcess[str]:
    """Record a program into ``run`` and, with no lines, into ``without``; their output is equal."""
    command = ("--", sys.executable, program)
    done = record("-o", folder / "run", *command, cwd=folder)
    without = record("--no-lines", "-o", folder / "without", *command, cwd=folder)
    assert done.returncode == without.returncode == 0
    assert done.stdout == without.stdout
    return done


@pytest.mark.frameworks
def test_operators_of_torch_lie_in_the_line_that_called_them(
    record: Record, script: Callable[[str], Path], tmp_path: Path
) -> None:
    needs("torch")
    done = _recorded_twice(record, script(TORCH), tmp_path)
    assert " kept (--no-source leaves them out)" in done.stderr
    assert notes(read_run(tmp_path / "run").run) == ()

    assert MARK.encode() not in gzip.decompress((tmp_path / "without/trace.json.gz").read_bytes())
    assert not (tmp_path / "without" / "source").exists()
    assert (tmp_path / "run" / "source" / "my_train.py").read_text() == TORCH

    trace = json.loads(gzip.decompress((tmp_path / "run" / "trace.json.gz").read_bytes()))
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    lines = [event for event in events if event["name"].startswith(MARK)]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    found: dict[str, set[str]] = {name: set() for name in LINE_OF}
    for event in events:
        around = [line for line in lines if line["tid"] == event["tid"] and _inside(event, line)]
        innermost = min(around, key=lambda line: line["dur"], default=None)
        if event["name"].startswith("aten::"):
            assert innermost is not None
        if event["name"] in found:
            assert innermost is not None
            found[event["name"]].add(innermost["name"].removeprefix(MARK))
    for name, line in LINE_OF.items():
        assert line in found[name]
        # The backward pass calls some of them too.
        assert found[name] <= {line, LINE_OF["AddmmBackward0"]}
    # No range of a line goes on in the next step.
    for line in lines:
        assert sum(_inside(line, step) for step in steps) == 1


def _inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    end = outer["ts"] + outer["dur"] + 0.002
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= end)


JAX = """
import jax
import jax.numpy as jnp

@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

def main():
    w, x = jnp.ones((64, 8)), jnp.ones((4, 64))
    for number in range(30):
        w = step(w, x)
        w.block_until_ready()
    print(float(w.sum()))

main()
"""


@pytest.mark.frameworks
def test_lines_of_jax_are_in_its_trace(
    record: Record, script: Callable[[str], Path], tmp_path: Path
) -> None:
    needs("jax")
    import traceana

    _recorded_twice(record, script(JAX), tmp_path)
    tables = traceana.open(tmp_path / "run").tables
    texts = tables.ranges["text"].cast(str).to_list()
    # A step ends within its call, and the next one begins within its own.
    for line, count in ((11, 10), (12, 20), (13, 10)):
        assert sum(text.endswith(f"my_train.py({line}): main") for text in texts) == count


KNOWN = {
    "torch": """
import time
import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)
u, v, w = (torch.nn.Parameter(torch.randn(size) / 16) for size in ((64, 8), (512, 64), (256, 512)))

def again(y):
    y = (y @ v).tanh()
    return y @ u

def main():
    optimizer = torch.optim.SGD([u, v, w], 1e-6)
    for number in range(30):
        x = torch.randn(32, 256)
        y = x @ w
        loss = checkpoint(again, y, use_reentrant=False).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        time.sleep(0.005)
    print(value)

main()
""",
    "jax": """
import time
import jax
import jax.numpy as jnp

def loss(w, v, x):
    y = jnp.tanh(x @ w)
    return (y @ v).sum()

@jax.jit
def step(w, v, x):
    a, b = jax.grad(loss, argnums=(0, 1))(w, v, x)
    return w - 0.1 * a, v - 0.1 * b

def main():
    w, v, x = jnp.ones((256, 512)), jnp.ones((512, 64)), jnp.ones((32, 256))
    for number in range(30):
        w, v = step(w, v, x)
        w.block_until_ready()
        time.sleep(0.005)
    print(float(w.sum()))

main()
""",
    "tensorflow": """
import time
import tensorflow as tf

w = tf.Variable(tf.random.stateless_normal((256, 512), (0, 1)))

def main():
    optimizer = tf.keras.optimizers.SGD(1e-6)
    for number in range(30):
        x = tf.random.stateless_normal((32, 256), (number, 1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ w)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
        value = float(loss.numpy())
        time.sleep(0.005)
    print(value)

main()
""",
}
_FIRST, _SECOND, _THIRD = (2 * 32 * m * n for m, n in ((256, 512), (512, 64), (64, 8)))
FLOPS_OF_LINE = {
    # Of the first product no gradient of the data is needed; the second runs again, of the third
    # recomputation needs the operands alone.
    "torch": {18: 2 * _FIRST, 11: 4 * _SECOND, 12: 3 * _THIRD},
    # The sum needs no product of its own, only its gradients.
    "jax": {7: 2 * _FIRST, 8: 2 * _SECOND},
    # TensorFlow's trace has no shapes.
    "tensorflow": {},
}


@pytest.mark.frameworks
@pytest.mark.parametrize("framework", KNOWN)
def test_flops_and_waits_are_on_their_lines(
    framework: str, record: Record, script: Callable[[str], Path], tmp_path: Path
) -> None:
    needs(framework)
    import traceana

    done = record("-o", tmp_path / "run", "--", sys.executable, script(KNOWN[framework]))
    assert done.returncode == 0, done.stderr
    trace = traceana.open(tmp_path / "run")
    table = trace.lines().frame
    steps = trace.tables.steps.height
    own = table.filter(pl.col("file") == "my_train.py")
    of_line = {row["line"]: row for row in own.to_dicts()}
    lines = KNOWN[framework].splitlines()
    for line, flops in FLOPS_OF_LINE[framework].items():
        # Small operators beside a product have FLOPs too.
        assert flops <= of_line[line]["flops"] / steps < 1.02 * flops
    sleep = of_line[1 + next(at for at, text in enumerate(lines) if "sleep" in text)]
    assert sleep["text"] == "time.sleep(0.005)"
    assert sleep["idle_ns"] >= 5_000_000 * (steps - 1)
    assert sleep["time_ns"] == 0
    # All work is of the program's lines, to the nanosecond.
    assert table["time_ns"].sum() == trace.tables.activities["duration"].sum()
    assert int(own["time_ns"].sum()) >= 0.95 * int(table["time_ns"].sum())
