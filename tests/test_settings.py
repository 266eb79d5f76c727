"""Thresholds are named in one place, with reasons, and shown in the JSON output."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist

import pytest

from tests.support.command_line import run
from traceana.settings import PREDICTION_DEVIATE, PREDICTION_LEVEL, SETTINGS

FIXTURE = Path(__file__).parents[1] / "fixtures" / "alexnet-cpu-ranges.json.gz"


def test_each_has_a_reason() -> None:
    assert all(setting.reason.endswith(".") for setting in SETTINGS.values())
    assert SETTINGS["warm_up_ratio"].value == 1.25


@pytest.mark.parametrize("command", ["kernels", "info"])
def test_json_shows_them(command: str) -> None:
    result = run(command, FIXTURE, "--format", "json")
    shown = json.loads(result.stdout)["meta"]["settings"]
    assert shown == {name: setting.value for name, setting in SETTINGS.items()}


def test_the_deviate_of_predictions_is_that_of_their_level() -> None:
    deviate = NormalDist().inv_cdf((1 + PREDICTION_LEVEL) / 2)
    assert deviate == pytest.approx(PREDICTION_DEVIATE, rel=1e-12)
