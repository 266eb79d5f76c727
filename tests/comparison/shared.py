"""Recordings that others made, each opened once, and their diffs."""

from __future__ import annotations

from functools import cache

import pytest

from tests.support import opened as traces
from tests.support.manifest import TRACES
from traceana.comparison.diff import Diff, diff
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


@cache
def diff_of(a: str, b: str) -> Diff:
    return diff(opened(a), opened(b))
