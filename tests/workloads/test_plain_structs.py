"""A machine that records needs neither msgspec nor polars, and writes the same files without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from traceana.flops.timed_algorithms import AlgorithmStudy, Device, Layer, Measurement, read
from workloads.algorithms.layers import convolutions
from workloads.manifest import layer_manifest
from workloads.options import RunOptions

ROOT = Path(__file__).resolve().parents[2]


def layers() -> str:
    return layer_manifest(RunOptions(network="resnet18")).to_json()


def study() -> AlgorithmStudy:
    return AlgorithmStudy(
        library="oneDNN",
        library_version="3.1",
        device=Device(kind="cpu", name="Zürich 9000", threads=2),
        network="lenet5",
        precision="fp32",
        layout="own",
        warm_up=1,
        tolerance=1e-3,
        recorded="2026-11-21",
        versions={"numpy": "2"},
        ended=None,
        layers=convolutions(layer_manifest(RunOptions(network="lenet5"))),
        measurements=(
            Measurement(
                layer="c1",
                direction="fprop",
                batch=2,
                algorithm="direct",
                name="a",
                status="ok",
                times_ns=(3, 4),
                error=1e-7,
            ),
            Measurement(
                layer="c3",
                direction="dgrad",
                batch=2,
                algorithm="fft",
                name="b",
                status="unsupported",
                reason="no",
            ),
        ),
    )


def test_files_are_the_same_without_msgspec(tmp_path: Path) -> None:
    without = (
        "import sys, pathlib\n"
        "sys.modules['msgspec'] = sys.modules['polars'] = None\n"
        "import workloads\n"
        "from tests.workloads.test_plain_structs import layers, study\n"
        "from traceana.flops.timed_algorithms import write\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / 'layers.json').write_text(layers(), encoding='utf-8')\n"
        "write(study(), folder / 'study.json')\n"
    )
    subprocess.run([sys.executable, "-c", without, str(tmp_path)], cwd=ROOT, check=True)
    assert msgspec.__file__  # the real one here
    assert (tmp_path / "layers.json").read_text("utf-8") == layers()
    assert read(tmp_path / "study.json") == study()
    assert isinstance(study().layers[0], Layer)
