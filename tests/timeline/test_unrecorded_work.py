"""A recording without the work of its launches: no sentence about what limits the device."""

from __future__ import annotations

import json
from pathlib import Path

import traceana
from tests.support.synthetic import Scenario, write_kineto

STEPS, LAUNCHES = 4, 10


def recording(folder: Path, kept: int) -> Path:
    """Return a recording of steps of ten kernels and a copy, with ``kept`` of the kernels."""
    run = Scenario()
    for number in range(STEPS):
        at = number * 400_000
        run.step(number, at, at + 400_000)
        for each in range(LAUNCHES):
            begin = at + each * 30_000
            run.launch(at=begin, call=5_000, begins=begin + 6_000, duration=20_000)
        begin = at + LAUNCHES * 30_000
        run.copy("DtoH", 1 << 16, at=begin, call=5_000, begins=begin + 6_000, duration=20_000)
    file = write_kineto(run, folder / "run.json")
    content = json.loads(file.read_bytes())
    kernels = [one for one in content["traceEvents"] if one.get("cat") == "kernel"]
    lost = [one for at, one in enumerate(kernels) if at % LAUNCHES >= kept]
    content["traceEvents"] = [one for one in content["traceEvents"] if one not in lost]
    file.write_text(json.dumps(content))
    return file


def test_all_work_recorded(tmp_path: Path) -> None:
    trace = traceana.open(recording(tmp_path, LAUNCHES))
    assert "no_work" not in trace.tables.ledger["reason"].to_list()
    found = trace.report().summary.bottleneck
    assert found is not None
    assert found.bound is not None


def test_work_of_launches_lost(tmp_path: Path) -> None:
    trace = traceana.open(recording(tmp_path, 5))
    (entry,) = trace.tables.ledger.rows_by_key("reason", named=True)["no_work"]
    # After the last kernel that is recorded, the recording may have ended.
    assert entry["count"] == STEPS * 5 - 5
    found = trace.report().summary.bottleneck
    assert found is not None
    assert found.bound is None
    assert found.share == (STEPS * 5 - 5) / (STEPS * LAUNCHES)
    assert trace.advise().frame.is_empty()


def test_only_copies_recorded(tmp_path: Path) -> None:
    found = traceana.open(recording(tmp_path, 0)).report().summary.bottleneck
    assert found is not None
    assert (found.bound, found.share) == (None, 1)
