"""Every convolution of real training traces has an algorithm, and next to nothing is unknown."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.support.opened import opened
from traceana.timeline.work import work
from traceana.trace import Trace
from traceana.trace.work import COLUMNS

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
NETWORKS = [
    "kineto/alexnet_forward_a100.json.gz",
    "kineto/cnn_train_nccl_a100.json.gz",
    "kineto/cnn_train_ns_resolution_v100.json.gz",
    "kineto/diff_control_a100.json.gz",
    "kineto/diff_test_v100.json.gz",
    "kineto/many_kernels_a100.json.gz",
    "kineto/resnet50_train_v100_autograd_api.json.gz",
    "kineto/resnet50_train_v100_oldest_schema.json.gz",
    "kineto/resnet50_train_v100_workers0.json.gz",
    "kineto/resnet50_train_v100_workers4.json.gz",
    "kineto/resnet_act_checkpoint_mi300x.json.gz",
    "kineto/resnet_train_2080ti.json.gz",
    "kineto/timesformer_h100.json.gz",
    "kineto/timesformer_mi300x.json.gz",
    "nsys/superres_pyprof_shapes_a100.schema3.11.sqlite",
    "xplane/jax_conv_mi300.xplane.pb",
]
DIRECTIONS = ("fprop", "dgrad", "wgrad")

NOT_IN_ACTIVITIES = ("layer", "range", "call", "step", "layer_type", "role")

pytestmark = [
    pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces"),
]


@pytest.fixture(scope="module", params=NETWORKS)
def trace(request: pytest.FixtureRequest) -> Trace:
    return opened(TRACES / request.param)


@pytest.fixture(scope="module")
def kernels(trace: Trace) -> pl.DataFrame:
    """Return the kernels with their classes, and the launching ``operator``."""
    labels = (column.name for column in COLUMNS if column.name not in NOT_IN_ACTIVITIES)
    rows = work(trace, *labels, "episode", "scope", "op", "class", "rule", "context_rule")
    texts = pl.col(pl.Categorical).cast(pl.String)
    kernels = rows.filter(kind="kernel").with_columns(texts).drop("direction")
    return kernels.rename({"kernel_direction": "direction"})


def time_ns(rows: pl.DataFrame) -> int:
    return int(rows["duration"].sum())


def test_next_to_nothing_is_other(kernels: pl.DataFrame) -> None:
    assert time_ns(kernels.filter(pl.col("category") == "other")) < 0.01 * time_ns(kernels)


def test_every_convolution_has_an_algorithm(kernels: pl.DataFrame) -> None:
    convolutions = kernels.filter(pl.col("category") == "conv")
    assert convolutions.filter(pl.col("algorithm").fill_null("unknown") == "unknown").is_empty()
    assert convolutions.filter(pl.col("family").is_null()).is_empty()


def test_what_a_convolution_operator_launches_belongs_to_a_convolution(
    kernels: pl.DataFrame,
) -> None:
    launched = kernels.filter(
        pl.col("operator").str.contains(r"^(?:aten::\w*convolution\w*|torch\..*conv\dd)$")
    )
    assert set(launched["category"]) <= {"conv", "layout", "bias", "algorithm search"}
    assert launched.filter(pl.col("episode").is_null()).is_empty()
    assert launched.filter(pl.col("category").is_in(["gemm", "other"])).is_empty()


def test_convolutions_of_operators_have_a_direction(kernels: pl.DataFrame) -> None:
    known = kernels.filter((pl.col("category") == "conv") & pl.col("operator").is_not_null())
    assert known.filter(~pl.col("direction").fill_null("").is_in(DIRECTIONS)).is_empty()


def test_products_under_an_operator_are_plain_or_batched(kernels: pl.DataFrame) -> None:
    products = kernels.filter(
        (pl.col("category") == "gemm")
        & pl.col("operator").str.contains(r"^aten::(?:addmm|mm|bmm|baddbmm)$")
    )
    assert products.filter(pl.col("batched").is_null()).is_empty()


def test_an_episode_is_of_one_operator_one_algorithm(trace: Trace, kernels: pl.DataFrame) -> None:
    episodes = trace.tables.episodes.with_row_index("episode")
    used = trace.tables.activities.filter(pl.col("episode").is_not_null())
    assert set(used["episode"]) == set(episodes["episode"])
    assert episodes["algorithm"].null_count() == 0
    reported = kernels.join(episodes, on="episode", how="inner", suffix="_of_episode").filter(
        pl.col("category") == "conv"
    )
    assert (
        reported["direction"].fill_null("") == reported["direction_of_episode"].fill_null("")
    ).all()


def test_no_time_is_lost_or_made(trace: Trace, kernels: pl.DataFrame) -> None:
    by_class = kernels.group_by("category", "algorithm").agg(pl.col("duration").sum())
    recorded = trace.tables.activities.filter(pl.col("kind") == "kernel")["duration"].sum()
    assert int(by_class["duration"].sum()) == int(recorded)


def test_both_classes_are_kept(trace: Trace, kernels: pl.DataFrame) -> None:
    assert trace.tables.names["rule"].null_count() == 0
    refined = kernels.filter(pl.col("class").is_not_null())
    assert refined["context_rule"].null_count() == 0
    assert refined["rule"].null_count() == 0
