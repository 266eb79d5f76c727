"""The file of an algorithm study: what a workload writes is read, other files are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.workloads.algorithms import shapes
from traceana.errors import CorruptError, NotFoundError, UnknownFormatError
from traceana.flops.timed_algorithms import (
    AlgorithmStudy,
    Device,
    Layer,
    Measurement,
    read,
)
from workloads.algorithms import study as written

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "algorithms"
PRIVATE = re.compile(rb"/(?:home|root|Users|work|tmp|mnt|data)/|\w@[a-z]{3}")


def layer(path: str = "conv", **given: Any) -> Layer:
    return Layer(**asdict(shapes.layer(path, **given)))


def study(**given: Any) -> AlgorithmStudy:
    fields: dict[str, Any] = {
        **{"library": "oneDNN", "library_version": "3.1.0", "network": "net"},
        "device": Device(kind="cpu", name="a CPU", threads=2),
        **{"precision": "fp32", "layout": "own", "warm_up": 1, "tolerance": 1e-3},
        **{"recorded": "2026-01-01", "versions": {"python": "3.11"}, "ended": None},
        "layers": (layer("conv1"), layer("conv2")),
        "measurements": (
            measurement(times_ns=(3, 1, 2)),
            measurement(layer="conv2", status="unsupported", reason="no such shape"),
        ),
        **given,
    }
    return AlgorithmStudy(**fields)


def measurement(**given: Any) -> Measurement:
    fields: dict[str, Any] = {
        **{"layer": "conv1", "direction": "fprop", "batch": 4, "algorithm": "direct"},
        **{"name": "convolution_direct", "status": "ok", **given},
    }
    return Measurement(**fields)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (Layer, written.Layer),
        (Measurement, written.Measurement),
        (Device, written.Device),
    ],
)
def test_a_workload_writes_the_fields_that_are_read(here: Any, there: Any) -> None:
    assert here.__struct_fields__ == tuple(each.name for each in fields(there))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        read(tmp_path / "none.json")
    with pytest.raises(UnknownFormatError):
        read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"format": "traceana-layers", "version": 1}', b"[" * 10**6],
    ids=["empty", "cut", "no text", "a list", "a manifest", "deep"],
)
def test_what_is_no_study(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(UnknownFormatError, match="is not an algorithm study"):
        read(file)


def test_a_study_of_another_version(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"format": "traceana-algorithms", "version": 99}', "utf-8")
    with pytest.raises(
        UnknownFormatError, match="of version 99, and this traceana reads 1: measure it again"
    ):
        read(file)


def _drop(fields: dict[str, Any]) -> None:
    del fields["device"]


def _layer_of_none(fields: dict[str, Any]) -> None:
    fields["measurements"][0]["layer"] = "conv9"


def _twice(fields: dict[str, Any]) -> None:
    fields["layers"][1]["path"] = "conv1"


def _untimed(fields: dict[str, Any]) -> None:
    del fields["measurements"][0]["times_ns"]


def _timed_and_unsupported(fields: dict[str, Any]) -> None:
    fields["measurements"][1]["times_ns"] = [1]


def _reasonless(fields: dict[str, Any]) -> None:
    del fields["measurements"][1]["reason"]


def _unknown_algorithm(fields: dict[str, Any]) -> None:
    fields["measurements"][0]["algorithm"] = "magic"


def _negative(fields: dict[str, Any]) -> None:
    fields["measurements"][0]["times_ns"] = [-1]


def _no_output(fields: dict[str, Any]) -> None:
    fields["layers"][0]["output"] = [9, 8]


def _no_groups(fields: dict[str, Any]) -> None:
    fields["layers"][0]["groups"] = 3


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (_drop, "`device`"),
        (_layer_of_none, "unknown layer 'conv9'"),
        (_twice, "two layers have the same path"),
        (_untimed, "times are required if"),
        (_timed_and_unsupported, "times are required if"),
        (_reasonless, "a reason is required if"),
        (_unknown_algorithm, "unknown algorithm 'magic'"),
        (_negative, ">= 0"),
        (_no_output, "the output size does not match"),
        (_no_groups, "not divisible by the groups"),
    ],
)
def test_a_study_that_contradicts_itself(
    damage: Callable[[dict[str, Any]], None], reported: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(msgspec.json.encode(study()))
    fields = json.loads(file.read_text("utf-8"))
    damage(fields)
    file.write_text(json.dumps(fields), "utf-8")
    with pytest.raises(CorruptError) as caught:
        read(file)
    assert reported in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_layer_has_its_convolution() -> None:
    made: Layer = layer(groups=2)
    assert made.convolution(5).macs == 5 * 6 * 9 * 7 * (4 // 2) * 3 * 3


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("*.json")), ids=lambda file: file.name)
def test_fixtures_name_no_machine(file: Path) -> None:
    content = file.read_bytes()
    assert not PRIVATE.search(content)
    found = read(file)
    assert found.ended is None
    assert found.measurements
