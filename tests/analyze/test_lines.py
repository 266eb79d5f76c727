"""``lines`` on small traces with known results."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.support.traces import TraceBuilder
from traceana.advise import advise
from traceana.analyze.line_tree import line_tree
from traceana.analyze.lines import NO_FRAME, NO_LAUNCH, NO_LINES, UNRECORDED, lines
from traceana.analyze.memory import memory
from traceana.analyze.source_listing import source_listing
from traceana.enrich import attribute
from traceana.errors import NoSuchSelectionError
from traceana.report.pages.lines import lines as lines_page
from traceana.timeline.critical import critical
from traceana.timeline.idle import idle
from traceana.trace import Trace

MAIN, ENGINE = 1, 2


def frame(b: TraceBuilder, text: str, start: int, end: int, thread: int = MAIN) -> None:
    b.row("ranges", text=text, kind="python", process=9, thread=thread, start=start,
          duration=end - start)  # fmt: skip


def op(b: TraceBuilder, name: str, start: int, end: int, **columns: Any) -> None:
    columns = {"thread": MAIN, **columns}
    b.row("ops", name=name, process=9, start=start, duration=end - start, **columns)


def kernel(b: TraceBuilder, at: int, start: int, duration: int, thread: int = MAIN) -> None:
    """Add a launch and its kernel."""
    number = len(b.rows["calls"]) + 1 if hasattr(b, "rows") else at
    b.row("calls", name="cudaLaunchKernel", process=9, thread=thread, start=at, duration=2,
          correlation=number)  # fmt: skip
    b.kernel("k", start, duration, correlation=number, process=9)


def training(**meta: Any) -> Trace:
    """One step: a line that loads, one that calls the model, ``backward``, and one that waits.

    The model's two lines launch 100 and 200 ns, their gradients 300 and 600 ns; the engine's
    accumulation has no forward operator. The host waits for the device in ``train.py(14)``.
    """
    b = TraceBuilder(**meta)
    frame(b, "train.py(5): main", 0, 10_000)
    frame(b, "train.py(10): step", 0, 100)
    frame(b, "train.py(11): step", 100, 400)
    frame(b, "torch/nn/modules/module.py(1751): _call_impl", 110, 390)
    frame(b, "model.py(41): forward", 120, 250)
    frame(b, "torch/nn/functional.py(20): linear", 130, 240)
    frame(b, "<built-in function linear>", 140, 230)
    op(b, "aten::addmm", 150, 220, sequence=1)
    kernel(b, 160, 1_000, 100)
    frame(b, "model.py(42): forward", 250, 380)
    op(b, "aten::relu", 260, 300, sequence=2)
    kernel(b, 270, 1_100, 200)
    frame(b, "train.py(12): step", 400, 900)
    for at, number, name, start, time in (
        (420, 2, "ReluBackward0", 1_300, 300),
        (520, 1, "AddmmBackward0", 1_600, 600),
    ):
        node = {"thread": ENGINE, "sequence": number, "direction": "backward"}
        op(b, f"autograd::engine::evaluate_function: {name}", at, at + 80, **node)
        op(b, name, at + 5, at + 75, **node)
        kernel(b, at + 10, start, time, ENGINE)
    kernel(b, 700, 2_200, 50, ENGINE)
    frame(b, "train.py(14): step", 900, 2_400)
    frame(b, "train.py(15): step", 2_400, 5_000)
    kernel(b, 3_000, 3_250, 70)
    # A launch that is not recorded.
    b.kernel("lost", 3_320, 30, correlation=99_999, process=9)
    return attribute(b.build())


def rows(trace: Trace, **options: Any) -> dict[str, dict[str, Any]]:
    return {
        row["file"] if row["line"] is None else f"{row['file']}:{row['line']}": row
        for row in lines(trace, **options).frame.to_dicts()
    }


def test_work_is_on_the_program_s_innermost_line_and_gradients_on_that_of_the_forward_pass() -> (
    None
):
    found = rows(training())
    assert (found["model.py:41"]["forward_ns"], found["model.py:41"]["backward_ns"]) == (100, 600)
    assert (found["model.py:42"]["forward_ns"], found["model.py:42"]["backward_ns"]) == (200, 300)
    # What the engine launches for no operator is of the line that called backward().
    assert found["train.py:12"]["time_ns"] == 50
    assert found["train.py:15"]["time_ns"] == 70
    assert found[NO_LAUNCH]["time_ns"] == 30
    assert found["model.py:41"]["function"] == "forward"


def test_idle_time_is_of_the_line_on_which_the_device_ran_dry() -> None:
    trace = training()
    found = rows(trace)
    # From the end of the last kernel, 2,250, to the next at 3,250: the host waits in line 14.
    assert found["train.py:14"]["idle_ns"] == 1_000
    assert found["train.py:15"]["idle_ns"] == 0
    by_line = dict(idle(trace, "line").frame.select("line", "time_ns").iter_rows())
    assert by_line["train.py:14"] == 1_000


def test_host_time_is_without_the_lines_that_are_called() -> None:
    found = rows(training())
    assert found["train.py:11"]["host_ns"] == 300 - 130 - 130
    assert found["model.py:41"]["host_ns"] == 130
    assert found["train.py:14"]["host_ns"] == 1_500
    # The frame that was running when the recording began.
    assert found["train.py:5"]["host_ns"] == 10_000 - 5_000


@pytest.mark.parametrize("by", ["line", "function", "file", "stack"])
def test_rows_add_up_to_all_work(by: Any) -> None:
    trace = training()
    table = lines(trace, by)
    time = int(trace.tables.activities["duration"].sum())
    assert table.totals["time_ns"] == table.frame["time_ns"].sum() == time
    parts = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns", "copy_ns")
    assert sum(table.frame[part].sum() for part in parts) == time


def test_by_function_file_and_stack() -> None:
    trace = training()
    functions = lines(trace, "function").frame.filter(file="model.py").to_dicts()
    assert [(row["function"], row["line"], row["time_ns"]) for row in functions] == [
        ("forward", 41, 1_200)
    ]
    assert rows(trace, by="file")["model.py"]["time_ns"] == 1_200
    stacks = dict(lines(trace, "stack").frame.select("line", "stack").iter_rows())
    assert stacks[41] == "train.py:5 > train.py:11 > model.py:41"


def test_a_library_has_its_own_line_where_the_program_has_none() -> None:
    b = TraceBuilder()
    frame(b, "threading.py(1032): _bootstrap", 0, 1_000)
    frame(b, "/opt/venv/lib/python3.12/site-packages/lib/core.py(7): run", 10, 900)
    op(b, "aten::mm", 20, 50)
    kernel(b, 30, 100, 10)
    assert rows(attribute(b.build()))[
        "/opt/venv/lib/python3.12/site-packages/lib/core.py:7"
    ]["time_ns"] == 10  # fmt: skip


def test_work_without_frames_says_why() -> None:
    b = TraceBuilder()
    op(b, "aten::mm", 20, 50)
    kernel(b, 30, 100, 10)
    table = lines(attribute(b.build()))
    assert table.frame["file"].to_list() == [UNRECORDED]
    assert NO_LINES in table.notes
    frame(b, "train.py(3): main", 200, 300)
    op(b, "aten::mm", 210, 250)
    kernel(b, 220, 400, 7)
    found = rows(attribute(b.build()))
    assert (found[NO_FRAME]["time_ns"], found["train.py:3"]["time_ns"]) == (10, 7)


def test_the_text_of_stacks_is_read_innermost_first() -> None:
    b = TraceBuilder()
    text = "torch/nn/functional.py(9): linear;<built-in x>;net.py(8): forward;main.py(3): <module>"
    op(b, "aten::linear", 0, 50, frames=text)
    op(b, "aten::addmm", 10, 40)
    kernel(b, 20, 100, 10)
    found = lines(attribute(b.build()), "stack").frame.row(0, named=True)
    assert (found["file"], found["line"], found["stack"]) == ("net.py", 8, "main.py:3 > net.py:8")
    # Where the host was between its operators is not known.
    assert (found["idle_ns"], found["host_ns"]) == (None, None)


@pytest.mark.parametrize("by_torch", [False, True])
def test_lines_of_record_are_frames_and_no_layers(by_torch: bool) -> None:
    """torch.profiler writes them as operators."""
    b = TraceBuilder()
    for text, start, end in (("train.py(3): main", 0, 900), ("net.py(8): forward", 10, 500)):
        columns = {"process": 9, "thread": MAIN, "start": start, "duration": end - start}
        if by_torch:
            b.row("ops", name=f"traceana line: {text}", **columns)
        else:
            b.row("ranges", text=f"traceana line: {text}", kind="annotation", **columns)
    op(b, "aten::mm", 20, 50)
    kernel(b, 30, 1_000, 10)
    trace = attribute(b.build())
    assert rows(trace)["net.py:8"]["time_ns"] == 10
    assert trace.tables.layers["path"].to_list() == ["mm_0"]
    assert set(trace.tables.ranges["kind"]) == {"python"}
    assert trace.tables.ops["name"].to_list() == ["aten::mm"]


@pytest.mark.parametrize("listed", ['{"files": {"net.py": "net.py"}}', "[]", "{", '{"files": 3}'])
def test_texts_are_those_of_the_recorded_run(listed: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "files.json").write_text(listed)
    (tmp_path / "source" / "net.py").write_text("\n".join(f"line {n}" for n in range(1, 50)))
    trace = training(source=str(tmp_path / "trace.json"))
    assert lines(trace).frame["text"].null_count() == lines(trace).frame.height
    (tmp_path / "source" / "files.json").write_text(
        json.dumps({"files": {"model.py": "net.py", "train.py": "../../secret"}})
    )
    again = training(source=trace.meta.source)
    texts = lines(again).frame.filter(pl.col("text").is_not_null())
    assert dict(texts.select("line", "text").iter_rows()) == {41: "line 41", 42: "line 42"}


def test_a_file_that_is_not_kept_is_read_while_it_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "run" / "source").mkdir(parents=True)
    program = tmp_path / "program"
    program.mkdir()
    content = "\n" * 40 + "x = self.conv(x)\n"
    digest = hashlib.sha256(content.encode()).hexdigest()
    listing = {
        "folder": f"{program}/",
        "files": {"model.py": None, "train.py": "train.py"},
        "sha256": {"model.py": digest, "train.py": digest},
    }
    (tmp_path / "run" / "source" / "files.json").write_text(json.dumps(listing))
    (tmp_path / "run" / "source" / "train.py").write_text("of another version\n" * 50)
    (program / "model.py").write_text(content)

    def texts() -> tuple[dict[int, str], tuple[str, ...]]:
        result = lines(training(source=str(tmp_path / "run" / "trace.json")))
        shown = result.frame.filter(pl.col("text").is_not_null())
        return dict(shown.select("line", "text").iter_rows()), result.notes

    shown, notes = texts()
    assert shown == {41: "x = self.conv(x)"}
    assert "text not shown, changed or gone since the recording: train.py" in notes
    (program / "model.py").write_text(content + "# more\n")
    shown, notes = texts()
    assert shown == {}
    assert "text not shown, changed or gone since the recording: model.py, train.py" in notes


def test_generated_code_of_inductor_has_the_line_that_runs_the_model() -> None:
    b = TraceBuilder()
    frame(b, "train.py(9): main", 0, 1_000)
    frame(b, "/var/cache/ab/c" + "a2" * 25 + "b.py(77): call", 10, 900)
    op(b, "triton_poi_fused_relu_0", 20, 50)
    kernel(b, 30, 100, 10)
    assert rows(attribute(b.build()))["train.py:9"]["time_ns"] == 10


def test_work_has_its_line_and_stack() -> None:
    trace = training()
    row = trace.work.filter(start=1_100).row(0, named=True)
    assert (row["line"], row["stack"]) == (
        "model.py:42",
        "train.py:5 > train.py:11 > model.py:42",
    )
    assert trace.work["line"].null_count() == 1


def test_the_tree_of_calls_has_the_sums_of_what_a_line_calls() -> None:
    trace = training()
    tree = line_tree(trace)
    nodes = {row["place"]: row for row in tree.to_dicts()}
    assert nodes[""]["time_ns"] == int(trace.tables.activities["duration"].sum())
    assert nodes["train.py:11"]["time_ns"] == 100 + 200 + 600 + 300
    assert nodes["train.py:5"]["time_ns"] == nodes[""]["time_ns"] - 30
    # Itself and what it calls.
    assert nodes["train.py:11"]["host_ns"] == 300
    assert nodes["train.py:5"]["host_ns"] == 10_000
    for row in tree.filter(pl.col("parent").is_not_null()).to_dicts():
        assert row["depth"] == tree["depth"][row["parent"]] + 1
    inner = tree.group_by("parent").agg(pl.col("time_ns", "idle_ns").sum())
    for parent, time, idle_ns in inner.drop_nulls("parent").iter_rows():
        assert (time, idle_ns) <= (tree["time_ns"][parent], tree["idle_ns"][parent])
    # Most time first.
    order = [row["place"] for row in tree.to_dicts()]
    assert order.index("model.py:41") < order.index("model.py:42")


def test_stacks_are_drawn_as_a_tree() -> None:
    shown = str(lines_page(training(), by="stack")).splitlines()
    drawn = [re.split(r"(?<=\w)  +", line)[0] for line in shown if ".py:" in line]
    assert drawn == [
        "train.py:5 main",
        "├─ train.py:11 step",
        "│  ├─ model.py:41 forward",
        "│  └─ model.py:42 forward",
        "├─ train.py:15 step",
        "├─ train.py:12 step",
        "└─ train.py:14 step",
    ]


def test_the_listing_of_a_file_has_its_regions(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    text = "\n".join(f"{'    ' * (n % 3)}line {n}  " for n in range(1, 60))
    (tmp_path / "source" / "model.py").write_text(text)
    listing = {"files": {"model.py": "model.py"}, "folder": "/w/"}
    (tmp_path / "source" / "files.json").write_text(json.dumps(listing))
    trace = training(source=str(tmp_path / "trace.json"))
    found = source_listing(trace, "model.py")
    assert found.frame["line"].to_list() == [39, 40, 41, 42, 43, 44]
    assert found.frame["text"].to_list() == [f"{'    ' * (n % 3)}line {n}" for n in range(39, 45)]
    assert dict(found.frame.drop_nulls("time_ns").select("line", "time_ns").iter_rows()) == {
        41: 700,
        42: 500,
    }
    # Without a text the lines with work remain.
    alone = source_listing(trace, "train.py")
    assert alone.frame["line"].to_list() == [5, None, 10, 11, 12, None, 14, 15]
    assert alone.notes == ("the recording does not keep the text of train.py",)
    with pytest.raises(NoSuchSelectionError, match=r"no file modl.py .*did you mean model.py"):
        source_listing(trace, "modl.py")


def test_the_ends_of_paths_name_files() -> None:
    b = TraceBuilder()
    for at, file in enumerate(("a/net.py", "b/net.py", "b/main.py")):
        frame(b, f"{file}({at + 1}): f", 100 * at, 100 * at + 90)
        op(b, "aten::mm", 100 * at + 10, 100 * at + 50)
        kernel(b, 100 * at + 20, 1_000 + 100 * at, 10)
    trace = attribute(b.build())
    assert source_listing(trace, "main.py").frame["line"].drop_nulls().to_list() == [3]
    with pytest.raises(NoSuchSelectionError, match=r"several files end with net\.py"):
        source_listing(trace, "net.py")


def test_the_critical_path_by_line_is_cut_where_lines_change() -> None:
    trace = training()
    by_line = critical(trace, by="line")
    assert by_line.totals["time_ns"] == critical(trace).totals["time_ns"]
    host = dict(
        by_line.frame.filter(pl.col("class").is_in(["host", "sync"]))
        .group_by("line")
        .agg(pl.col("time_ns").sum())
        .iter_rows()
    )
    # The device is waited for in line 14 until 2,400; then line 15 runs up to its launch at 3,000.
    assert host["train.py:15"] == 3_002 - 2_400
    kernels = by_line.frame.filter(pl.col("class") == "kernel")
    assert set(kernels["line"]) == {"train.py:15", "(no line)"}
    # By other keys lines cut nothing.
    assert critical(trace).totals["count"] < by_line.totals["count"]


def test_memory_by_line() -> None:
    b = TraceBuilder()
    frame(b, "train.py(5): main", 0, 1_000)
    frame(b, "model.py(41): forward", 100, 300)
    op(b, "aten::mm", 120, 200)
    kernel(b, 130, 400, 10)
    for time, address, size in ((150, 1, 512), (250, 2, 256), (500, 3, 128), (600, 2, -256)):
        b.row("memory", time=time, process=9, thread=MAIN, device=0, address=address, bytes=size)
    found = dict(memory(attribute(b.build()), "line").frame.select("line", "bytes").iter_rows())
    assert found == {"model.py:41": 512 + 256, "train.py:5": 128}


def test_whole_paths_inside_the_program_s_folder_are_relative(tmp_path: Path) -> None:
    """HLO has whole paths where ``record`` has relative ones."""
    (tmp_path / "source").mkdir()
    listing = {"folder": "/w/app/", "files": {"net.py": "net.py"}}
    (tmp_path / "source" / "files.json").write_text(json.dumps(listing))
    (tmp_path / "source" / "net.py").write_text("x = 1\n")
    b = TraceBuilder(source=str(tmp_path / "trace.json"))
    for at, file in ((0, "/w/app/net.py"), (100, "/elsewhere/net.py")):
        op(b, "aten::mm", at, at + 50, frames=f"{file}(1): f")
        kernel(b, at + 10, at + 1_000, 10)
    texts = dict(lines(attribute(b.build())).frame.select("file", "text").iter_rows())
    assert texts == {"net.py": "x = 1", "/elsewhere/net.py": None}


def test_hostile_frames_are_no_frames_and_a_deep_recursion_is_cut() -> None:
    b = TraceBuilder()
    for text in ("train.py(99999999999999999999): main", "<string>(1): x", "(3)", "no frame", ""):
        frame(b, text, 0, 10_000)
    for depth in range(400):
        frame(b, f"deep.py({depth + 1}): recurse", depth, 9_000 - depth)
    op(b, "aten::mm", 1_000, 1_050)
    kernel(b, 1_010, 20_000, 10)
    (found,) = lines(attribute(b.build()), "stack").frame.filter(time_ns=10).to_dicts()
    assert (found["file"], found["line"]) == ("deep.py", 400)
    assert found["stack"].startswith("… deep.py:")
    assert found["stack"].endswith("deep.py:399 > deep.py:400")
    assert len(found["stack"]) <= 2_010


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_listing_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "files.json")
    trace = training(source=str(tmp_path / "trace.json"))
    assert lines(trace).frame["text"].null_count() == lines(trace).frame.height


STACKS = Path(__file__).parents[2] / "fixtures" / "gpu" / "alexnet_b32_stack.json.gz"


def test_kernels_of_a_recorded_training_are_on_the_lines_of_a_recount() -> None:
    """By the JSON alone: the function of the program around the launch, of a backward kernel around
    the forward operator with its sequence number."""
    events = [e for e in json.loads(gzip.decompress(STACKS.read_bytes()))["traceEvents"]
              if e.get("ph") == "X"]  # fmt: skip
    frames = [
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]), e["tid"], e["name"])
        for e in events
        if e["cat"] == "python_function" and e["name"].startswith("variants.py(")
    ]

    def function_at(time: float, thread: int) -> str | None:
        around = [one for one in frames if one[0] <= time < one[1] and one[2] == thread]
        return min(around, key=lambda one: one[1] - one[0])[3] if around else None

    operators = [e for e in events if e["cat"] == "cpu_op"]
    main = max(frames, key=lambda one: one[1] - one[0])[2]
    forward = {
        e["args"]["Sequence number"]: e
        for e in operators
        if "Sequence number" in e["args"] and e["tid"] == main
    }
    launches = {
        e["args"]["correlation"]: e for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")
    }
    counted: Counter[str] = Counter()
    for work in events:
        if work["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        call = launches.get(work["args"]["correlation"])
        if call is None:
            counted[f"{NO_LAUNCH}(None): None"] += round(1000 * float(work["dur"]))
            continue
        time, thread = float(call["ts"]), call["tid"]
        around = [
            e for e in operators
            if e["tid"] == thread
            and float(e["ts"]) <= time < float(e["ts"]) + float(e["dur"])
            and e["args"].get("Fwd thread id")
        ]  # fmt: skip
        function = None
        if around:
            node = forward.get(around[0]["args"].get("Sequence number"))
            function = node and function_at(float(node["ts"]), main)
        function = function or function_at(time, thread) or function_at(time, main)
        counted[str(function)] += round(1000 * float(work["dur"]))
    found: Counter[str] = Counter()
    trace = traceana.open(STACKS)
    for row in lines(trace).frame.filter(pl.col("time_ns") > 0).to_dicts():
        found[f"{row['file']}({row['line']}): {row['function']}"] += row["time_ns"]
    assert found == counted


def test_recommendations_name_lines() -> None:
    findings = {one.rule.id: one for one in advise(traceana.open(STACKS)).findings}
    assert findings["pageable_copies"].line == "variants.py:96"
    assert findings["tensor_cores_unused"].line == "variants.py:100"
    assert "; largest: variants.py:96" in str(traceana.open(STACKS).advise())
