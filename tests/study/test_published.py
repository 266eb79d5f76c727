"""The published figures: whole, exact, in the columns of their studies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import polars as pl
import pytest

from traceana.study import Name, step_times
from traceana.study.step_times import BATCH, RATIO
from traceana.study.study import PAPERS, SOURCE, exhibits, rows
from traceana.study.timed_convolutions import BY_BATCH, BY_LAYER
from traceana.study.trace_tables import (
    EPILOGUES,
    FRAMEWORKS,
    SGEMM,
    TRANSFERS,
)
from traceana.table import Columns, names_of

SCHEMAS: Mapping[Name, Columns] = {
    Name.FRAMEWORKS: FRAMEWORKS,
    Name.EPILOGUES: EPILOGUES,
    Name.ALGORITHMS: BY_BATCH,
    Name.LAYERWISE: BY_LAYER,
    Name.SCALING: step_times.SCALING,
    Name.BATCH: BATCH,
    Name.SGEMM: SGEMM,
    Name.TRANSFERS: TRANSFERS,
    Name.RATIO: RATIO,
}
STUDIES = Path(__file__).parents[3] / "shared" / "STUDIES.md"


@pytest.mark.parametrize("name", Name)
def test_every_study_has_its_exhibit(name: Name) -> None:
    found = exhibits(name)
    assert found
    for one in found:
        assert one.source.startswith(one.authors)
        assert one.rows or one.findings


@pytest.mark.parametrize("name", Name)
def test_printed_columns_are_those_of_the_study(name: Name) -> None:
    for one in exhibits(name):
        for row in one.rows:
            assert set(row) <= set(names_of(SCHEMAS[name]))
    frame = rows(name, (*SCHEMAS[name], SOURCE))
    assert frame.height == sum(len(one.rows) for one in exhibits(name))
    assert frame["source"].null_count() == 0


def test_table_iv() -> None:
    frame = rows(Name.EPILOGUES, (*EPILOGUES, SOURCE))
    table = {
        (run.split()[0], operation): (library, time)
        for run, operation, library, time in frame.select(
            "run", "operation", "library", "time_ns"
        ).iter_rows()
    }
    assert len(table) == 10
    assert table["Caffe", "bias"] == ("cuDNN", 2_640_000)
    assert table["TensorFlow", "relu"] == ("Eigen", 2_430_000)
    assert table["Theano", "bias"] == ("Theano", 7_880_000)


def test_table_1_counts_what_ran() -> None:
    frame = rows(Name.SGEMM, (*SGEMM, SOURCE))
    assert frame.group_by("run", "form").len().sort("run", "form").rows() == [
        ("Caffe 1.0.0", "plain", 6),
        ("TensorFlow 1.4.0", "batched", 6),
        ("TensorFlow 1.4.0", "plain", 4),
    ]
    caffe = frame.filter(pl.col("run") == "Caffe 1.0.0")
    assert caffe["time_ns"].sum() == 18_377_830_000
    assert caffe["calls"].sum() == 75264 + 71680 + 71701 + 10282 + 10812 + 60


def test_printed_throughput_is_bytes_over_time() -> None:
    """So MB and GB are decimal there, and GPU to GPU in TensorFlow is in GB/s."""
    frame = rows(Name.TRANSFERS, (*TRANSFERS, SOURCE))
    assert frame.height == 6
    for size, rate, time in frame.select("bytes", "bytes_per_s", "time_ns").iter_rows():
        assert size / time * 1e9 == pytest.approx(rate, rel=2e-3)


@pytest.mark.skipif(not STUDIES.is_file(), reason="the notes on the studies are not there")
def test_no_number_is_of_our_own_making() -> None:
    reported = STUDIES.read_text(encoding="utf-8")
    for paper in PAPERS:
        text = (resources.files("traceana.study") / "papers" / f"{paper}.toml").read_text("utf-8")
        for exhibit in tomllib.loads(text)["exhibit"]:
            for row in exhibit.get("row", ()):
                for key in ("time", "bytes", "bytes_per_s", "calls", "count"):
                    if key in row:
                        number = re.escape(str(row[key]).split(" ")[0])
                        assert re.search(rf"(?<![\d.]){number}(?![\d.])", reported), row
