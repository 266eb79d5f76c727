"""Planted bottlenecks: found, ranked first, and nothing claimed that is not there.

``python -m tools.planted`` runs all of them. Here it is one of each rule and two healthy runs; each
must be as docs/planted.md has it.
"""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.advise.planted import CASES, Case, score
from tools.gallery import BY_RULE, section
from tools.gallery import PAGE as FINDINGS
from tools.planted import FIRST, PAGE, row
from traceana.advise import RULES, Rule
from traceana.report.terminal import Terminal, render

_LINES: Final = {
    line.split(" | ")[0].removeprefix("| "): line
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
}
_HEALTHY: Final = [case for case in CASES if case.cause is None][-2:]
SAMPLE: Final = [*BY_RULE.values(), *_HEALTHY]


@pytest.mark.slow
@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_the_planted_cause_is_found_as_the_page_has_it(case: Case) -> None:
    assert row(case, score(case)) == _LINES[case.name]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_finding_is_printed_as_it_was(rule: Rule) -> None:
    assert section(rule) in FINDINGS.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("case", BY_RULE.values(), ids=lambda case: case.name)
def test_no_evidence_is_wider_than_the_terminal(case: Case, width: int) -> None:
    page = score(case).page
    assert page is not None
    lines = render(page, Terminal(width)).splitlines()
    assert max(map(len, lines)) <= width


def test_the_page_has_all_cases_and_at_least_95_percent_of_the_causes_first() -> None:
    cells = {name: line.strip("| ").split(" |") for name, line in _LINES.items()}
    ranks = [cells[case.name][4].strip() for case in CASES if case.cause]
    claims = [re.search(r"`\w+` \|$", _LINES[case.name]) for case in CASES]
    assert ranks.count("1") >= FIRST * len(ranks)
    assert sum(claim is not None for claim in claims) <= (1 - FIRST) * len(CASES)
    assert all(_LINES[case.name].endswith("|  |  |") for case in CASES if not case.cause)


def test_every_rule_is_planted_twice() -> None:
    planted = [case.cause.rule for case in CASES if case.cause]
    assert {rule.id for rule in RULES if planted.count(rule.id) < 2} == set()
    assert len(planted) >= 50
    assert len(CASES) - len(planted) >= 8
