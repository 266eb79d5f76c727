"""Each rule has a trace in which it holds and traces in which it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.advise.cases import CASES, Build
from traceana.advise import RULES, advise
from traceana.advise.columns import BY_NAME
from traceana.report.pages.advise import sentence

SILENT = [(rule, build) for rule, (_, silent) in CASES.items() for build in silent]


def test_no_rule_is_without_both() -> None:
    assert sorted(CASES) == sorted(rule.id for rule in RULES)
    assert all(silent for _, silent in CASES.values())


@pytest.mark.slow
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_holds_where_it_should(rule: str, tmp_path: Path) -> None:
    advice = advise(CASES[rule][0](tmp_path))
    (finding,) = [one for one in advice.findings if one.rule.id == rule]
    saves = finding.rule.kind in ("estimate", "upper bound", "time per example")
    assert (finding.saving_ns > 0) is saves
    assert 0 <= finding.saving_share <= 1
    assert finding.evidence.height
    assert {*finding.evidence.columns, *finding.figures} <= {*BY_NAME}
    reported = sentence(finding)
    assert "{" not in reported
    assert "[" not in reported


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "build"), SILENT)
def test_a_rule_is_silent_where_it_does_not_hold(
    rule: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No rule depends on another: the others, of which some have figures of their own, take longer.
    monkeypatch.setattr("traceana.advise.RULES", [one for one in RULES if one.id == rule])
    assert rule not in {one.rule.id for one in advise(build(tmp_path)).findings}


def test_every_figure_of_a_sentence_is_declared() -> None:
    for rule in RULES:
        assert {*re.findall(r"\{(\w+)\}", rule.sentence)} <= {*BY_NAME}, rule.id
