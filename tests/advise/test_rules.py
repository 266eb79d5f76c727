"""Each rule has a trace in which it holds and traces in which it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.advise.cases import CASES, Build, added
from traceana.advise import RULES, advise
from traceana.advise.columns import BY_NAME
from traceana.report.pages.advise import findings_of, sentence
from traceana.whatif.scenario import NAMED

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


@pytest.mark.slow
def test_more_than_the_memory_bandwidth_is_explained(tmp_path: Path) -> None:
    """Sums that move 256 MiB and more take 894 µs at a V100's bandwidth."""
    above, below = (
        sentence(finding)
        for microseconds in (800, 1_000)
        for finding in advise(added(microseconds)(tmp_path)).findings
        if finding.rule.id == "memory_bound_at_peak"
    )
    assert above.endswith("memory bandwidth (above 100 %: operands can stay in the L2 cache)")
    assert below.endswith("of the memory bandwidth")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "scenarios"),
    [
        ("unfused_elementwise", ("compile",)),
        ("memory_bound_at_peak", ("compile",)),
        ("tensor_cores_unused", ("amp",)),
        ("pageable_copies", ()),
    ],
)
def test_explain_names_the_scenarios_that_predict_the_change(
    rule: str, scenarios: tuple[str, ...], tmp_path: Path
) -> None:
    advice = advise(CASES[rule][0](tmp_path))
    (finding,) = [one for one in advice.findings if one.rule.id == rule]
    assert finding.predicted_by == scenarios
    assert {*scenarios} <= {*NAMED}
    plain, explained = (
        dict(findings_of([finding], explain=explain)[0].details) for explain in (False, True)
    )
    commands = "; ".join(f"traceana whatif --scenario {name}" for name in scenarios)
    assert explained.get("prediction", "") == commands
    assert "prediction" not in plain
