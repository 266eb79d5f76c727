"""``traceana info``."""

from __future__ import annotations

from pathlib import Path

from tests.support.synthetic import Scenario
from tests.support.synthetic.traces import nsys
from traceana.report.page import Facts


def test_a_process_without_a_name_has_its_number_alone(tmp_path: Path) -> None:
    run = Scenario()
    run.launch(at=100, begins=300, duration=1_000)
    blocks = nsys(run, tmp_path).info().page().blocks
    facts = {
        label: value for block in blocks if isinstance(block, Facts) for label, value in block.rows
    }
    assert facts["Processes"] == str(run.process)
