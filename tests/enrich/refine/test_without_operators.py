"""Classes of the H100 recordings without their operators, compared with those by the operators."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from tests.support.manifest import FIXTURES
from tests.support.opened import opened

RECORDINGS = FIXTURES / "gpu"
NAMES = ["convs_fp32_nchw_benchmark", "vgg11_b32", "resnet18_b8", "products", "alexnet_eager"]
COLUMNS = ("category", "algorithm", "kernel_direction", "precision", "batched")


def classes(path: Path) -> pl.DataFrame:
    # The program's clock orders kernels of several streams otherwise.
    trace = opened(path).with_meta(as_recorded=True)
    rows = trace.work.filter(kind="kernel").sort("start", "stream")
    texts = pl.col(pl.Categorical).cast(pl.String)
    return rows.select("name", "duration", *COLUMNS).with_columns(texts)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Return the kernels with their classes by operators and, prefixed ``no_``, without."""
    folder, parts = tmp_path_factory.mktemp("bare"), []
    for name in NAMES:
        path = RECORDINGS / f"{name}.json.gz"
        recorded = json.loads(gzip.decompress(path.read_bytes()))
        events = [event for event in recorded["traceEvents"] if event.get("cat") != "cpu_op"]
        bare = folder / f"{name}.json"
        bare.write_text(json.dumps(recorded | {"traceEvents": events}))
        with_operators, without = classes(path), classes(bare)
        assert with_operators["name"].equals(without["name"])
        parts.append(with_operators.hstack(without.select(pl.col(COLUMNS).name.prefix("no_"))))
    return pl.concat(parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "categories", "least"),
    [
        ("category", None, 0.995),
        ("algorithm", ["conv"], 0.99),
        ("kernel_direction", ["conv"], 0.99),
        ("precision", ["attention", "conv", "gemm", "rnn"], 0.99),
        # Products one by one, as in `products`, have no neighbours.
        ("batched", ["gemm"], 0.88),
    ],
)
def test_names_and_neighbours_find_the_classes_of_the_operators(
    kernels: pl.DataFrame, column: str, categories: list[str] | None, least: float
) -> None:
    chosen = kernels if categories is None else kernels.filter(pl.col("category").is_in(categories))
    alike = chosen.filter(pl.col(column).eq_missing(pl.col(f"no_{column}")))
    assert int(alike["duration"].sum()) >= least * int(chosen["duration"].sum())
