"""The recordings in fixtures/ match their provenance, and do not name a machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.support.manifests import manifest_of
from tests.support.opened import opened
from traceana.runs.layer_manifest import read
from traceana.timeline.steps import step_time
from workloads.network import Conv, Linear
from workloads.options import RunOptions, parse_run_options
from workloads.provenance import stem
from workloads.recordings import PLANS
from workloads.sandbox import HOST_NAME

FOLDER = Path(__file__).resolve().parents[2] / "fixtures"
KINETO = sorted(FOLDER.glob("*.json.gz"))
NSYS = sorted(FOLDER.glob("*.sqlite"))
TOP = KINETO + NSYS + sorted(FOLDER.glob("*.csv"))
H200 = sorted(one for end in ("csv", "gz") for one in (FOLDER / "h200").glob(f"*.{end}"))
NETWORKS = sorted((FOLDER / "networks").glob("*.gz"))
RECORDINGS = TOP + NETWORKS + H200

# Folders of people and of machines; what the recording's own sandbox and nsys bring is beside it.
PRIVATE = re.compile(
    rb"/(?:home|root|Users|work|workspace|mnt|data|scratch)/|PIP_|SSL_CERT|\w@[a-z]{3}"
)
TEMPORARY = re.compile(rb"/tmp/(?!nvidia/nsight_systems/)")

by_name = pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.name)


def sidecar(file: Path, kind: str) -> dict[str, Any]:
    path = file.with_name(f"{stem(file)}.{kind}.json")
    facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return facts


def options_of(file: Path) -> RunOptions:
    return parse_run_options(sidecar(file, "provenance")["commands"][0].split())


def content(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def test_there_is_a_recording_for_each_of_the_cpu_plan() -> None:
    for recording in PLANS["cpu"]:
        pattern = f"{recording.name}*{recording.suffix}"
        (file,) = (FOLDER / recording.folder).glob(pattern) if recording.folder else (None,)
        assert file is not None or list(FOLDER.glob(pattern)), recording.name


@pytest.mark.parametrize(
    ("folder", "recordings"),
    [(FOLDER, TOP), (FOLDER / "networks", NETWORKS), (FOLDER / "h200", H200)],
    ids=["top", "networks", "h200"],
)
def test_nothing_lies_there_unexplained(folder: Path, recordings: list[Path]) -> None:
    table = (FOLDER / "README.md").read_text("utf-8")
    stems = {stem(file) for file in recordings}
    expected = {file.name for file in recordings}
    expected |= {f"{name}.{kind}.json" for name in stems for kind in ("provenance", "layers")}
    found = {path.name for path in folder.iterdir() if path.is_file()}
    assert found - {"README.md", "files-read.md"} == expected
    for file in recordings:
        assert f"| `{file.name}` |" in table


@by_name
def test_provenance(file: Path) -> None:
    facts = sidecar(file, "provenance")
    assert facts["file"] == file.name
    assert facts["bytes"] == file.stat().st_size < 1_000_000
    assert facts["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert facts["licence"] == "Apache-2.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", facts["recorded"])
    assert facts["commands"]
    packages = facts["versions"].keys()
    assert packages & {"torch", "tensorflow-cpu", "jaxlib"}
    assert facts["recorder"]["version"]
    assert facts["cpu"]["model"]


@by_name
def test_the_layers_beside_it_are_those_of_its_options(file: Path) -> None:
    beside = file.with_name(f"{stem(file)}.layers.json")
    assert read(beside) == manifest_of(options_of(file))


@by_name
def test_no_machine_is_named(file: Path) -> None:
    for data in (content(file), json.dumps(sidecar(file, "provenance")).encode()):
        assert PRIVATE.search(data) is None
        assert TEMPORARY.search(data) is None


@pytest.mark.parametrize("file", NETWORKS, ids=lambda file: file.name)
def test_networks_with_branches_or_groups_name_their_layers(file: Path) -> None:
    """Both directions of every layer that multiplies have their time, in each step."""
    options = options_of(file)
    network = options.describe_network()
    trace = opened(file)
    assert trace.tables.steps.height == options.steps
    multiplied = [each.name for each in network.layers if isinstance(each, Conv | Linear)]
    assert len(multiplied) in (8, 54, 58)
    # TensorFlow numbers the scopes of a model that is built a second time.
    paths = trace.tables.layers["path"].str.replace_all(r"_1(\.|$)", "$1")
    names = paths.str.strip_prefix(f"{network.name}.")
    rows = trace.tables.activities.select(
        names.gather(trace.tables.activities["layer"]).alias("layer"),
        pl.col("direction").cast(pl.String),
        "duration",
    )
    spent = rows.drop_nulls().group_by("layer", "direction").agg(pl.col("duration").sum())
    time = {(layer, direction): ns for layer, direction, ns in spent.iter_rows()}
    for layer in multiplied:
        for direction in ("forward", "backward"):
            assert time.get((layer, direction), 0) > 0, (layer, direction)


@pytest.mark.parametrize("file", KINETO, ids=lambda file: file.name)
def test_kineto_names_the_rooms_host(file: Path) -> None:
    trace = json.loads(content(file))
    assert trace["host_name"] == HOST_NAME
    steps = sidecar(file, "provenance")["options"]["steps"]
    names = [event["name"] for event in trace["traceEvents"]]
    assert sum(name.startswith("ProfilerStep#") for name in names) == steps


@pytest.mark.parametrize("file", NSYS, ids=lambda file: file.name)
def test_nsys_names_the_rooms_host_and_saw_only_its_own_processes(file: Path) -> None:
    layers = [layer["path"] for layer in sidecar(file, "layers")["layers"]]
    options = sidecar(file, "provenance")["options"]
    database = sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)
    query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
    assert database.execute(query).fetchall() == [(HOST_NAME,)]
    processes = {Path(name).name for (name,) in database.execute("SELECT name FROM PROCESSES")}
    assert processes <= {"sh", "python", "nsys", "nsys-launcher", "nsys-tee"}
    query = "SELECT value, count(*) FROM NVTX_EVENTS JOIN StringIds ON id = textId GROUP BY value"
    counts = dict(database.execute(query).fetchall())
    database.close()
    for layer in layers:
        for direction in ("forward", "backward"):
            assert counts[f"{direction}: {layer}"] == options["steps"] + options["warm_up"]


@pytest.mark.parametrize("file", [one for one in H200 if one.suffix == ".gz"], ids=lambda f: f.name)
def test_steps_on_a_gpu_are_those_of_the_programs_own_clock(file: Path) -> None:
    """Each step of these programs ends with a wait for the GPU."""
    printed = re.findall(r"\d+\.\d+", sidecar(file, "provenance")["output"])
    found = step_time(opened(file))
    assert found is not None
    assert [one / 1e6 for one in found.each_ns] == pytest.approx(list(map(float, printed)), 0.003)
