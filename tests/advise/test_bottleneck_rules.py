"""Which recommendations are about what limits a run."""

from __future__ import annotations

import pytest

from traceana.advise.bottleneck import COLLECTIVES, COPIES, HOST, KERNELS, RULES_ABOUT, Bottleneck
from traceana.advise.rule import RULES


@pytest.mark.parametrize(
    ("bound", "by", "rules", "others"),
    [
        ("transfer-bound", COPIES, ["pageable_copies"], ["tensor_cores_unused", "launch_bound"]),
        ("communication-bound", COLLECTIVES, ["exposed_communication"], ["pageable_copies"]),
        ("launch-bound", HOST, ["launch_bound", "host_bound", "small_batch"], ["zeroing"]),
        ("host-bound", HOST, ["launch_bound", "host_bound"], ["small_batch"]),
        ("input-bound", HOST, ["data_loading"], ["launch_bound", "host_bound"]),
        ("GPU-bound", KERNELS, ["tensor_cores_unused", "small_batch"], ["host_bound"]),
    ],
)
def test_rules_about_the_bottleneck(
    bound: str, by: str, rules: list[str], others: list[str]
) -> None:
    limits = Bottleneck(bound, by, 0.5, None, {})
    assert [one for one in rules + others if limits.shortened_by(one)] == rules


def test_every_rule_that_is_named_exists() -> None:
    assert {one for rules in RULES_ABOUT.values() for one in rules} <= {one.id for one in RULES}
