"""A cut has the figures of the steps that it was cut to, as a bundle and as a Kineto file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceana
from tests.job.jobs import Job, even
from tests.readers.kineto.writing import kernel, write
from tests.support.manifest import chosen, traces_at_hand
from traceana.errors import CannotWriteError, TraceanaError, UsageError
from traceana.report.render import Format, render
from traceana.timeline.steps import measured_steps, step_time
from traceana.whatif.program import without_profiler

FIXTURES = Path(__file__).parents[2] / "fixtures"
ALEXNET = FIXTURES / "gpu" / "alexnet_b128.json.gz"
STACK = FIXTURES / "gpu" / "alexnet_b32_stack.json.gz"
EXACT = ("critical", "flops", "idle", "kernels", "layers", "lines", "transfers")
"""Commands whose figures as recorded do not depend on other steps."""
MOVED = {"meta", "start_ns", "position"}
"""What a cut has otherwise: its path, and the places in the recording."""


def figures(trace: traceana.Trace, command: str) -> Any:
    """Return the rows and sums of a command, or the name of its error."""
    try:
        page = getattr(trace, command)().page()
    except TraceanaError as error:
        return type(error).__name__
    content = render(page, Format.JSON)
    text = content if isinstance(content, str | bytes) else b"".join(content)
    return without(json.loads(text), MOVED)


def without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: without(inner, keys) for key, inner in value.items() if key not in keys}
    return [without(inner, keys) for inner in value] if isinstance(value, list) else value


def wall_ns(trace: traceana.Trace) -> int:
    of_steps = step_time(without_profiler(trace))
    assert of_steps is not None
    return of_steps.mean_ns


def middle_step(trace: traceana.Trace) -> int | None:
    numbers = measured_steps(trace).numbers
    return numbers[len(numbers) // 2] if numbers else None


@pytest.mark.parametrize("name", ["cut", "cut.json.gz"])
@pytest.mark.parametrize("path", [ALEXNET, STACK], ids=lambda path: path.name)
def test_cut_has_the_figures_of_its_steps(path: Path, name: str, tmp_path: Path) -> None:
    whole = traceana.open(path, as_recorded=True)
    part = whole.select(steps=middle_step(whole))
    (part.save if name == "cut" else part.export)(tmp_path / name)
    cut = traceana.open(tmp_path / name, as_recorded=True)
    assert cut.whole.tables.activities.height < whole.tables.activities.height
    for command in EXACT:
        assert figures(cut, command) == figures(part, command), command
    again = cut.select(steps=middle_step(whole))
    assert figures(again, "kernels") == figures(part, "kernels")
    with pytest.raises(TraceanaError, match="has no step"):
        cut.select(steps=middle_step(whole) + 1)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["cut", "cut.json"])
def test_cut_has_the_clock_of_its_program(name: str, tmp_path: Path) -> None:
    whole = traceana.open(ALEXNET)
    part = whole.select(steps=4)
    (part.save if name == "cut" else part.export)(tmp_path / name)
    cut = traceana.open(tmp_path / name)
    of_recording = traceana.open(ALEXNET, as_recorded=True).select(steps=4)
    recorded, of_part, of_cut = (wall_ns(trace) for trace in (of_recording, part, cut))
    assert of_part < 0.999 * recorded
    assert of_cut == pytest.approx(of_part, rel=1e-4)


def test_cut_counts_what_it_leaves_out(tmp_path: Path) -> None:
    whole = traceana.open(ALEXNET)
    whole.select(steps=4).save(tmp_path / "cut")
    cut = traceana.open(tmp_path / "cut").whole.tables
    left_out = dict(cut.ledger.filter(reason="cut").select("table", "count").iter_rows())
    for table in ("activities", "calls", "ops", "ranges", "links", "memory", "steps"):
        rows = getattr(whole.tables, table).height
        assert getattr(cut, table).height + left_out.get(table, 0) == rows, table


def test_cut_of_a_cut(tmp_path: Path) -> None:
    part = traceana.open(ALEXNET, as_recorded=True).select(steps=4)
    part.export(tmp_path / "once.json")
    once = traceana.open(tmp_path / "once.json", as_recorded=True)
    once.export(tmp_path / "twice.json")
    twice = traceana.open(tmp_path / "twice.json", as_recorded=True)
    assert figures(twice, "idle") == figures(part, "idle")


def test_selection_of_devices_is_kept(tmp_path: Path) -> None:
    whole = traceana.open(FIXTURES / "gpu" / "streams_copies.json.gz")
    whole.select(devices=0).save(tmp_path / "cut")
    assert traceana.open(tmp_path / "cut").meta.properties["selected_devices"] == (0,)


@pytest.mark.parametrize("ending", ["", ".json"])
def test_cuts_of_the_ranks_of_a_job_are_a_job(ending: str, tmp_path: Path) -> None:
    files = Job(even(2, 5, 1)).write(tmp_path / "job")
    (tmp_path / "cuts").mkdir()
    for file in files:
        part = traceana.open(file, as_recorded=True).select(steps=3)
        (part.export if ending else part.save)(tmp_path / "cuts" / f"{file.stem}{ending}")
    part = traceana.open(tmp_path / "job", as_recorded=True).select(steps=3)
    cut = traceana.open(tmp_path / "cuts", as_recorded=True)
    assert cut.whole.tables.steps["number"].unique().to_list() == [2, 3]
    for command in EXACT:
        assert figures(cut, command) == figures(part, command), command


def test_a_cut_rank_beside_a_whole_one_selects_its_steps_in_both(tmp_path: Path) -> None:
    files = Job(even(2, 5, 1)).write(tmp_path / "job")
    part = traceana.open(files[0], as_recorded=True).select(steps=3)
    part.export(tmp_path / "cut.json")
    (tmp_path / "cut.json").replace(files[0])
    job = traceana.open(tmp_path / "job", as_recorded=True)
    assert job.tables.steps.select("rank", "number").rows() == [(0, 3), (1, 3)]


def test_cuts_of_different_steps_are_no_job(tmp_path: Path) -> None:
    for step, file in enumerate(Job(even(2, 5, 1)).write(tmp_path / "job"), 2):
        traceana.open(file).select(steps=step).export(tmp_path / f"{step}.json")
    with pytest.raises(UsageError, match=r"2\.json has step 2, .*3\.json step 3: cut the ranks"):
        traceana.open([tmp_path / "2.json", tmp_path / "3.json"])


def test_only_kineto_is_cut_as_kineto(tmp_path: Path) -> None:
    trace = traceana.open(FIXTURES / "alexnet-cpu-nsys-2024.2.sqlite")
    with pytest.raises(UsageError, match="traceana save"):
        trace.export(tmp_path / "cut.json")
    with pytest.raises(CannotWriteError, match=r"\.json"):
        trace.export(tmp_path / "cut.txt")


def test_changed_file_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(gzip.decompress(ALEXNET.read_bytes()))
    trace = traceana.open(file)
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="not the file that was read"):
        trace.select(steps=4).export(tmp_path / "cut.json")


CUT = {"cut": {"source": "a", "steps": [1]}}


@pytest.mark.parametrize(
    "own",
    [
        *(7, {}, {"cut": {"source": 3}, "steps": []}, {"steps": [[1]]}),
        {**CUT, "steps": [[1, 2**63, 5, 1, "x"]]},
        {**CUT, "steps": [[1, 5, -5, 1, "x"]]},
        {**CUT, "steps": [], "host_factors": [[None, 1, 1e300]]},
        {**CUT, "steps": [], "unprofiled_step_ns": -1},
    ],
)
def test_foreign_key_of_a_cut_is_a_problem(own: Any, tmp_path: Path) -> None:
    content = json.loads(gzip.decompress(ALEXNET.read_bytes()))
    (tmp_path / "trace.json").write_text(json.dumps({**content, "traceana": own}))
    trace = traceana.open(tmp_path / "trace.json")
    assert trace.tables.ledger.filter(reason="malformed")["detail"].to_list() == ["key traceana"]
    assert trace.tables.steps.equals(traceana.open(ALEXNET).tables.steps)


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.integers(0, 10**16))
def test_steps_of_a_foreign_key_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, number: int, start: int, duration: int
) -> None:
    file = tmp_path_factory.mktemp("cut") / "t.json"
    own = {"cut": {"source": "a", "steps": [number]}, "steps": [[number, start, duration, 1, "x"]]}
    write(file, [kernel("k", 10, 5), kernel("k", 20, 5)], traceana=own)
    try:
        trace = traceana.open(file)
    except TraceanaError:
        return
    figures(trace, "report")
    figures(trace, "idle")


def test_events_are_those_of_the_file(tmp_path: Path) -> None:
    traceana.open(ALEXNET).select(steps=4).export(tmp_path / "cut.json")
    content = json.loads(gzip.decompress(ALEXNET.read_bytes()))
    cut = json.loads((tmp_path / "cut.json").read_bytes())
    assert all(event in content["traceEvents"] for event in cut["traceEvents"])
    assert len(cut["traceEvents"]) < len(content["traceEvents"]) / 1.5
    del cut["traceana"], cut["traceEvents"], content["traceEvents"]
    assert cut == content


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", chosen(traces_at_hand()))
def test_cut_of_every_trace(path: Path, tmp_path: Path) -> None:
    try:
        whole = traceana.open(path, as_recorded=True)
    except TraceanaError:
        pytest.skip("not a trace")
    step = middle_step(whole)
    if step is None:
        pytest.skip("no steps")
    part = whole.select(steps=step)
    part.save(tmp_path / "cut")
    cut = traceana.open(tmp_path / "cut", as_recorded=True)
    # A manifest beside the trace is not in the bundle.
    part = part.with_manifest(None) if part.manifest is None else part
    for command in EXACT:
        assert figures(cut, command) == figures(part, command), command
