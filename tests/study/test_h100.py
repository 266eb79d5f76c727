"""The studies on an H100: their figures are those of the raw files, added up in a few lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

import polars as pl
import pytest

from tests.support.every_command import printed
from tests.support.manifest import FIXTURES
from tests.support.opened import opened

GPU: Final = FIXTURES / "gpu"
FP32: Final = FIXTURES / "algorithms" / "alexnet-h100-cudnn-fp32.json"


def study(name: str, *files: str) -> pl.DataFrame:
    """Return all rows of a study of ``files``, of fixtures/gpu."""
    paths = [GPU / one for one in files] if files else [FP32]
    found = json.loads(printed(f"study {name}", *paths, form="json"))
    return pl.DataFrame(found["rows"], infer_schema_length=None)


def events(name: str, category: str) -> Iterator[dict[str, Any]]:
    """Yield the events of ``category`` in a recording."""
    whole = json.loads(gzip.decompress((GPU / f"{name}.json.gz").read_bytes()))
    return (one for one in whole["traceEvents"] if one.get("cat") == category)


def test_the_times_of_algorithms_are_the_sums_of_their_medians() -> None:
    measured = [one for one in json.loads(FP32.read_text())["measurements"] if "times_ns" in one]
    for row in study("algorithms").iter_rows(named=True):
        own = [
            one
            for one in measured
            if (one["direction"], one["batch"], one["algorithm"], one["status"])
            == (row["direction"], row["batch"], row["algorithm"], "ok")
        ]
        assert len(own) == row["layers"]
        assert row["time_ns"] == pytest.approx(sum(median(one["times_ns"]) for one in own), abs=5)
        assert row["workspace_bytes"] == max(one["workspace_bytes"] for one in own)


def test_winograd_leads_at_small_batches_and_fft_at_large_ones() -> None:
    """Finding of Kim et al., of the layers that both can compute: conv3 to conv5."""
    measured = [one for one in json.loads(FP32.read_text())["measurements"] if "times_ns" in one]
    fastest = {}
    for batch in (16, 256):
        times: dict[str, float] = {}
        for one in measured:
            if one["batch"] == batch and one["layer"] in ("conv3", "conv4", "conv5"):
                times[one["algorithm"]] = times.get(one["algorithm"], 0) + median(one["times_ns"])
        rows = study("layerwise").filter(
            pl.col("batch") == batch,
            pl.col("layer").is_in(["conv3", "conv4", "conv5"]),
            pl.col("algorithm").is_in(["fft", "winograd_nonfused"]),
        )
        of = dict(rows.group_by("algorithm").agg(pl.col("time_ns").sum()).iter_rows())
        assert {name: times[name] for name in of} == pytest.approx(of, abs=20)
        fastest[batch] = min(of, key=lambda name: of[name])
    assert fastest == {16: "winograd_nonfused", 256: "fft"}


@pytest.mark.parametrize(
    ("name", "memory"),
    [("alexnet_b128", "pageable"), ("alexnet_b128_pinned", "pinned"), ("alexnet_b64", "pageable")],
)
def test_copies_to_the_device_are_those_of_the_events(name: str, memory: str) -> None:
    copies = [one for one in events(name, "gpu_memcpy") if "HtoD" in one["name"]]
    (row,) = study("transfers", f"{name}.json.gz").filter(direction="HtoD").iter_rows(named=True)
    # Of five steps; the loader that pins copies one batch more.
    assert (row["count"], row["host_memory"]) == (2, memory)
    copied = sum(one["args"]["bytes"] for one in copies)
    assert row["bytes"] * len(copies) / 2 == copied
    rate = copied / sum(one["dur"] for one in copies) * 1e6
    assert row["bytes_per_s"] == pytest.approx(rate, rel=0.05)


def test_the_time_per_image_is_that_of_the_recorded_steps() -> None:
    rows = study("batch", "sweep_alexnet")
    assert sorted(rows["batch"].to_list()) == [1, 4, 16, 64]
    for batch, image in rows.select("batch", "image_ns").iter_rows():
        timing = json.loads((GPU / f"sweep_alexnet/batch={batch}/timing.json").read_text())
        assert image == pytest.approx(
            median(timing["without_profiler"]["steps_ns"]) / batch, rel=1e-6
        )


def test_a_compiled_run_has_bias_and_relu_in_generated_kernels() -> None:
    """Table IV of Kim et al.: what eager PyTorch has as kernels of their own."""
    rows = study("epilogues", "alexnet_eager.json.gz", "alexnet_default.json.gz")
    assert set(rows["how"]) == {"separate kernel"}
    assert rows["run"].str.contains("eager").all()
    found = json.loads(
        printed("study epilogues", GPU / "alexnet_eager.json.gz", GPU / "alexnet_default.json.gz",
                form="json")
    )  # fmt: skip
    # The first of three steps is warm-up.
    generated = [one for one in events("alexnet_default", "kernel") if "triton_" in one["name"]]
    each = sum(one["dur"] for one in generated) / 3 / 1000
    (note,) = (one for one in found["meta"]["notes"] if "compiler-fused" in one)
    assert float(note.split(" ms")[0].split()[-1]) == pytest.approx(each, abs=0.01)


def test_generated_code_names_the_layers_of_generated_kernels() -> None:
    """``--inductor-cache``: of kernels that end in a pooling layer alone, too."""
    apart = {"pool1", "pool2", "pool5"}
    file = GPU / "alexnet_default.json.gz"
    plain = opened(file).layers().frame
    looked_into = opened(file, inductor_cache=GPU / "alexnet_default_code").layers().frame
    assert not apart & {*plain["layer"]}
    assert apart < {*looked_into["layer"]}
    assert plain["time_ns"].sum() == looked_into["time_ns"].sum()
