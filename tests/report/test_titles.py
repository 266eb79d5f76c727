"""The name of the model in a report's title, and what a command without figures recommends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import run

RECORDED = Path(__file__).parents[2] / "fixtures/xplane"


@pytest.mark.parametrize(
    ("framework", "title"),
    [("jax", "step · JAX · CPU · XPlane"), ("keras", "TensorFlow · CPU · XPlane")],
)
def test_a_run_is_named_by_its_function_not_by_an_operator(framework: str, title: str) -> None:
    done = run("report", RECORDED / f"alexnet-cpu-{framework}.xplane.pb")
    first = done.stdout.splitlines()[0]
    assert first.split("  ")[-1].strip().removeprefix("alexnet · ") == title


def test_the_profiler_that_made_the_file_is_not_recommended() -> None:
    done = run("memory", RECORDED / "alexnet-cpu-jax.xplane.pb")
    assert "no allocator events" in done.stderr + done.stdout
    assert ".xplane.pb)" not in done.stderr + done.stdout
