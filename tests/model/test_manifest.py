"""The layer manifest: written files are read back, and other files are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traceana import describe
from traceana.errors import (
    CannotWriteError,
    InvalidInputError,
    NotFoundError,
    TraceanaError,
    UnknownFormatError,
)
from traceana.model.recorded_calls import parse_call
from traceana.runs.layer_manifest import Input, Layer, Manifest, find, manifest, read

CONV = Layer(
    path='features.0 "é"\n',
    type="Conv2d",
    framework_type="torch.nn.modules.conv.Conv2d",
    position=0,
    calls=2,
    inputs=((8, 3, 32, 32),),
    outputs=((8, 4, 16, 16),),
    layout="channels_last",
    kernel=(3, 3),
    stride=(2, 2),
    padding=((0, 1), (0, 1)),
    dilation=(1, 1),
    groups=1,
    parameters={"weight": (4, 3, 3, 3), "bias": (4,)},
    parameter_count=112,
    flops=2 * 2 * 8 * 4 * 16 * 16 * 27,
)
OWN = Layer(path="own", type="Mystery", framework_type="my.Mystery", position=1)
SMALL = manifest(
    network="small",
    framework="PyTorch",
    inputs=(Input(shape=(8, 3, 32, 32), dtype="float32", layout="channels_last", name="images"),),
    layers=(CONV, OWN),
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "small.layers.json"
    SMALL.write(file)
    assert read(file) == SMALL
    content = json.loads(file.read_text("utf-8"))
    assert (content["format"], content["version"]) == ("traceana-layers", 1)
    assert content["layers"][1] == {
        "path": "own", "type": "Mystery", "framework_type": "my.Mystery", "position": 1,
    }  # fmt: skip
    # A layer a line, so that two manifests can be compared by eye.
    assert sum("framework_type" in line for line in file.read_text("utf-8").splitlines()) == 2


def test_totals_leave_out_unknown_values() -> None:
    assert SMALL.flops == CONV.flops
    assert SMALL.parameter_count == 112


def test_a_manifest_without_layers(tmp_path: Path) -> None:
    empty = manifest(network="", framework=None, inputs=(), layers=())
    empty.write(tmp_path / "x")
    assert read(tmp_path / "x") == empty


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(SMALL.to_json()), **fields}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a layer manifest"),
        (b"{}", "is not a layer manifest"),
        (b"[1, 2]", "is not a layer manifest"),
        (b"\xff\xfe\x00", "is not a layer manifest"),
        (b"[" * 100_000, "is not a layer manifest"),
        (b'{"x": ' + b"[" * 100_000, "is not a layer manifest"),
        (changed(format="other"), "is not a layer manifest"),
        (changed(version=2), "of version 2, and this traceana reads 1; write it again"),
        (changed(version="1"), "is not a layer manifest"),
        (changed(layers=[{"path": "x"}]), "damaged"),
        (changed(layers=None), "damaged"),
        (changed(inputs=[{"shape": [-1], "dtype": "float32"}]), "damaged"),
        (changed(inputs=[{"shape": [2**60], "dtype": "float32"}]), "damaged"),
        (changed(flops=2**64), "damaged"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_line(
    content: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.layers.json"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read(tmp_path / "none.json")
    with pytest.raises(UnknownFormatError):
        read(tmp_path)
    with pytest.raises(CannotWriteError, match="give another path"):
        SMALL.write(tmp_path / "none" / "x.json")
    assert issubclass(InvalidInputError, TraceanaError)


@pytest.mark.parametrize(
    "name",
    ["run.json", "run.json.gz", "run.sqlite", "run.xplane.pb", "run.trace.json.gz", "run"],
)
def test_the_manifest_beside_a_trace(name: str, tmp_path: Path) -> None:
    trace = tmp_path / name
    trace.touch()
    (tmp_path / "other.layers.json").touch()
    (tmp_path / "other.json").touch()
    assert find(trace) is None
    beside = tmp_path / "run.layers.json"
    beside.touch()
    assert find(trace) == beside


def test_the_longest_stem_is_the_traces(tmp_path: Path) -> None:
    for name in ("a.layers.json", "a.b.layers.json", "a.b.json"):
        (tmp_path / name).touch()
    assert find(tmp_path / "a.b.json") == tmp_path / "a.b.layers.json"
    assert find(tmp_path / "a.c.json") == tmp_path / "a.layers.json"


def test_the_one_manifest_of_a_folder(tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json"
    trace.touch()
    only = tmp_path / "layers.json"
    only.touch()
    assert find(trace) == only
    assert find(tmp_path) == only
    only.rename(tmp_path / "net.layers.json")
    assert find(trace) == tmp_path / "net.layers.json"
    (tmp_path / "net.provenance.json").touch()
    assert find(trace) == tmp_path / "net.layers.json"
    # Another trace's.
    (tmp_path / "net.json.gz").touch()
    assert find(trace) is None
    assert find(tmp_path / "net.json.gz") == tmp_path / "net.layers.json"


def test_two_manifests_are_none(tmp_path: Path) -> None:
    for name in ("layers.json", "x.layers.json"):
        (tmp_path / name).touch()
    assert find(tmp_path / "rank0.json") is None
    assert find(tmp_path / "none" / "rank0.json") is None


def test_describe_is_a_function_and_imports_no_framework() -> None:
    program = (
        "import sys, types, traceana\n"
        "assert isinstance(traceana.describe, types.FunctionType)\n"
        "print(sorted({'torch', 'keras', 'jax', 'flax', 'tensorflow', 'polars'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("model", [None, 3, "resnet50", len, int, lambda x: x])
def test_what_is_no_model_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where JAX has been imported a function may be its.
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.raises(InvalidInputError, match="is not a supported model: give a PyTorch module"):
        describe(model, (1, 2))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((), None, "no input shape"),
        (8, None, "8 is not an input shape"),
        ("8", None, "'8' is not an input shape"),
        ((0, 3), None, "not an input shape"),
        ((8, 3.0), None, "not an input shape"),
        ((8, True), None, "not an input shape"),
        ((8, None), None, "not an input shape"),
        ([(8, 3), (8, -1)], None, "not an input shape"),
        ((8, 3), "float33", "unknown dtype 'float33'"),
        ([(8, 3), (8, 3)], ["float32"], "1 dtypes for 2 inputs"),
    ],
)
def test_shapes_and_dtypes_that_are_none(shape: Any, dtype: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        describe(None, shape, dtype=dtype)


def test_a_tensor_stands_for_its_shape_and_type() -> None:
    image, tokens = np.zeros((8, 3, 4, 4), np.float32), np.zeros((8, 16), np.int64)
    assert parse_call([image, tokens], None) == parse_call(
        [(8, 3, 4, 4), (8, 16)], ["float32", "int64"]
    )
    assert parse_call({"x": tokens}, "int32") == parse_call({"x": (8, 16)}, "int32")
    # The values of one without a batch are not printed.
    with pytest.raises(InvalidInputError, match=r"^\(\) is not an input shape"):
        parse_call(np.float32(3), None)


def test_a_manifest_is_frozen() -> None:
    with pytest.raises(AttributeError):
        SMALL.network = "x"  # type: ignore[misc]
    assert isinstance(SMALL, Manifest)
