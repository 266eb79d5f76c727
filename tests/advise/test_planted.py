"""Planted bottlenecks: found, ranked first, and nothing claimed that is not there."""

from __future__ import annotations

import pytest

from tests.advise.planted import CASES, Case, score
from traceana.advise import RULES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_planted_cause_is_first_and_nothing_else_is_claimed(case: Case) -> None:
    found = [rule for rule, _ in score(case).found]
    assert set(found) <= case.allowed
    assert found[:1] == ([case.cause.rule] if case.cause else [])


def test_every_rule_is_planted_twice() -> None:
    planted = [case.cause.rule for case in CASES if case.cause]
    assert {rule.id for rule in RULES if planted.count(rule.id) < 2} == set()
    assert len(CASES) >= 50
    assert sum(case.cause is None for case in CASES) >= 8
