"""Labels of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceana.comparison.run_inputs import labels


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["caffe.sqlite", "tensorflow.json.gz"], ["caffe", "tensorflow"]),
        (["x/a.pt.trace.json.gz", "y/b.xplane.pb"], ["a", "b"]),
        (["runs/caffe/trace.json", "runs/torch/trace.json"], ["caffe", "torch"]),
        (["sweep/batch=1", "sweep/batch=0.5"], ["batch=1", "batch=0.5"]),
        (["r/a/gpu/t.json", "r/b/cpu/t.json"], ["a/gpu", "b/cpu"]),
        (["r/t.json", "r/a/t.json"], ["t", "a/t"]),
        (["a.json", "a.sqlite"], ["a", "a (2)"]),
        (["a.json", "a.json", "b.json"], ["a", "a (2)", "b"]),
        ([".json", "b.gz"], [".json", "b"]),
    ],
)
def test_labels_are_short_and_distinct(paths: list[str], expected: list[str]) -> None:
    found = labels([Path(path) for path in paths])
    assert len(set(found)) == len(found)
    assert found == expected
