"""The pairs of programs that a GPU is recorded with, in small on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import traceana
from traceana.whatif.scenario import scenario
from workloads.pytorch.programs import PROGRAMS, main

pytestmark = pytest.mark.frameworks


def test_every_change_is_one_that_whatif_knows() -> None:
    for program in PROGRAMS.values():
        assert (program.before is None) == (program.change is None)
        if program.before is not None and program.change is not None:
            assert program.before in PROGRAMS
            assert program.change == "nothing" or scenario(program.change)


def test_programs_are_timed_and_recorded(tmp_path: Path) -> None:
    wanted = ("alexnet_b128_wait20", "alexnet_b64_memory", "alexnet_b128_nhwc_tf32")
    options = [word for name in wanted for word in ("--only", name)]
    assert main(["--device", "cpu", "--out", str(tmp_path), *options]) == 0
    lines = [json.loads(line) for line in (tmp_path / "variants.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == list(wanted)
    for line in lines:
        assert line["batch"] == 2
        assert sum(line["steps_ns"]) == pytest.approx(line["mean_ns"] * 3, abs=3)
        trace = traceana.open(tmp_path / f"{line['name']}.json.gz")
        assert trace.tables.steps.height == 5
    assert lines[0]["mean_ns"] > 20e6 > 0
    assert not list(tmp_path.glob("*.json"))
