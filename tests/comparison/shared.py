"""Recordings that others made, each opened once, and their diffs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import traceana
from tests.support import opened as traces
from tests.support.manifest import TRACES
from traceana.comparison.diff import Diff
from traceana.comparison.run_tables import Comparison
from traceana.trace import Trace

CONTROL = ("kineto/diff_control_a100.json.gz", "kineto/diff_test_v100.json.gz")
TIMESFORMER = ("kineto/timesformer_h100.json.gz", "kineto/timesformer_mi300x.json.gz")
TRANSFORMER = (
    "nsys/transformer_2xh100_before.schema3.25.sqlite",
    "nsys/transformer_2xh100_after.schema3.25.sqlite",
)
WORKERS = (
    "kineto/resnet50_train_v100_workers0.json.gz",
    "kineto/resnet50_train_v100_workers4.json.gz",
)


def opened(name: str) -> Trace:
    path = TRACES / name
    if not path.exists():
        pytest.skip("no shared traces")
    return traces.opened(path)


def diff(a: Any, b: Any, **options: Any) -> Diff:
    found: Diff = traceana.diff(a, b, **options).summary
    return found


def compare(runs: Any, **options: Any) -> Comparison:
    found: Comparison = traceana.compare(runs, **options).summary
    return found


@cache
def diff_of(a: str, b: str) -> Diff:
    return diff(opened(a), opened(b))
