"""nvprof databases with the kernels of the studies' frameworks, as docs/studies.md has them."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.readers.nvprof.writing import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    TEXTS,
    call,
    copy,
    database,
    kernel,
)
from traceana.analyze.classes import breakdown
from traceana.analyze.transfers import transfers

NAMES = Path(__file__).parents[2] / "enrich" / "classify" / "data" / "blind_legacy.tsv"
SOURCES = {
    "caffe": ("source__caffe",),
    "cntk": ("cntk-gpu-2.7__libCntk.Math-2.7",),
    "mxnet": ("mxnet-cu112-1.9.1__libmxnet",),
    "theano": ("source__theano",),
    "torch": ("source__lua-torch-cunn", "source__lua-torch-cutorch", "source__cuda-convnet2.torch"),
}
STEP = 1_000


def labelled(framework: str) -> list[tuple[str, str]]:
    """Return (name, category) of every kernel of the framework in the list."""
    with NAMES.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(r["name"], r["category"]) for r in rows if r["source"] in SOURCES[framework]]


@pytest.mark.parametrize("framework", SOURCES)
def test_the_frameworks_kernels_keep_their_time_and_get_their_class(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel N lasts N ns: every category's time is a sum over the list's labels."""
    listed = labelled(framework)
    assert len(listed) > 20
    first = max(TEXTS) + 1
    for number, (name, _) in enumerate(listed):
        monkeypatch.setitem(TEXTS, first + number, name)
    kernels = [
        kernel(STEP * i, STEP * i + i + 1, name=first + i, correlationId=1000 + i)
        for i in range(len(listed))
    ]
    calls = [
        call(STEP * i - 500, STEP * i - 490, correlationId=1000 + i) for i in range(len(listed))
    ]
    trace = traceana.open(database(tmp_path / "a.nvvp", {KERNEL: kernels, RUNTIME: calls}))
    assert trace.tables.activities["duration"].sum() == len(listed) * (len(listed) + 1) // 2
    names = trace.tables.activities.select("duration").with_columns(
        trace.tables.names["category"].gather(trace.tables.activities["name_id"]).alias("category")
    )
    right = sum(
        names.filter(pl.col("duration") == i + 1)["category"].item() == category
        for i, (_, category) in enumerate(listed)
    )
    assert right / len(listed) >= 0.98
    by_class = breakdown(trace).frame
    assert by_class["time_ns"].sum() == trace.tables.activities["duration"].sum()


def test_caffes_products_and_copies_as_the_studies_print_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table 1 of Trindade and Lima (SGEMM by kernel) and NVIDIA's of the copies, in small."""
    texts = ["maxwell_sgemm_128x64_nn", "maxwell_sgemm_128x64_nt", "maxwell_sgemm_128x128_tn"]
    for number, name in enumerate(texts):
        monkeypatch.setitem(TEXTS, 10 + number, name)
    lengths = [(10, 70), (10, 30), (11, 40), (12, 12)]
    kernels = [
        kernel(STEP * i, STEP * i + length, name=name)
        for i, (name, length) in enumerate(lengths, start=1)
    ]
    copies = [
        copy(10_000, 10_100, 1), copy(11_000, 11_300, 1),
        copy(12_000, 12_050, 2, srcKind=3, dstKind=1), copy(13_000, 13_010, 8, srcKind=3),
    ]  # fmt: skip
    tables = {KERNEL: kernels, MEMCPY: copies, RUNTIME: [call(1, 2)]}
    trace = traceana.open(database(tmp_path / "a.nvvp", tables))
    products = (
        trace.tables.activities.filter(pl.col("kind") == "kernel")
        .join(trace.tables.names.with_row_index("name_id"), on="name_id")
        .group_by("name", "category", "precision", "tile")
        .agg(pl.col("duration").sum(), pl.len().alias("calls"))
        .sort("name")
    )
    assert products.select("name", "duration", "calls").rows() == [
        ("maxwell_sgemm_128x128_tn", 12, 1),
        ("maxwell_sgemm_128x64_nn", 100, 2),
        ("maxwell_sgemm_128x64_nt", 40, 1),
    ]
    assert set(products["category"]) == {"gemm"}
    assert set(products["precision"]) == {"fp32"}
    assert products["tile"].to_list() == ["128x128", "128x64", "128x64"]
    moved = transfers(trace).frame.select("direction", "count", "bytes", "time_ns")
    assert sorted(moved.rows()) == [
        ("DtoD", 1, 4096, 10),
        ("DtoH", 1, 4096, 50),
        ("HtoD", 2, 8192, 400),
    ]
