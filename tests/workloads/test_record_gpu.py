"""The script for a machine with a GPU, on the CPU, with a framework and NumPy alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from workloads.record_gpu import PARTS, _run

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "workloads" / "record_gpu.sh"


def run_script(*words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    # XLA's older way compiles in half the time; what it records is not looked at here.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
    environment = {**os.environ, "PYTHON": python, "XLA_FLAGS": flags}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        ["sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False
    )


def python_with(folder: Path, *packages: str) -> str:
    """Make a virtual environment of these packages and their requirements; return its Python."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    todo, linked = list(packages), set()
    while todo:
        found = distribution(todo.pop())
        if found.name in linked:
            continue
        linked.add(found.name)
        for file in {
            each if each.parts[0] == ".." else each.parts[0] for each in found.files or ()
        }:
            place = Path(os.path.normpath(site / file))
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.symlink_to(os.path.normpath(str(found.locate_file(file))))
        for text in found.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(needed.name)
    return str(folder / "bin" / "python")


def test_no_workload_imports_traceana() -> None:
    for path in (ROOT / "workloads").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "traceana" for name in names), path


@pytest.mark.exhaustive(after=1)
@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (("torch", "jax"), {"jax": "ok"}),
        (
            ("torch", "numpy"),
            {
                "pairs": "ok",
                "ranks": "ok",
                "jax": "skipped",
                "keras": "skipped",
                "counters": "skipped",
                "lightning": "skipped",
            },
        ),
        (("torch", "numpy", "onednn-cpu-gomp"), {"counters": "ok"}),
        (("torch", "numpy"), {"compiled": "ok"}),
        (("torch", "tensorflow-cpu"), {"keras": "ok"}),
    ],
    ids=lambda each: ",".join(each),
)
def test_a_part_needs_its_framework_alone(
    packages: tuple[str, ...], expected: dict[str, str], tmp_path: Path
) -> None:
    if Path(tempfile.gettempdir()) in Path(sys.prefix).parents:
        pytest.skip("this environment is in the folder that the sandbox hides")
    try:
        python = python_with(tmp_path / "venv", *packages)
    except PackageNotFoundError as error:
        pytest.skip(str(error))
    for absent in ("polars", "msgspec", "typer", "traceana"):
        assert subprocess.run(
            [python, "-Ec", f"import {absent}"], check=False, capture_output=True
        ).returncode
    output = tmp_path / "made"
    words = ("--device", "cpu", "--parts", ",".join(expected), "--output", str(output))
    done = run_script(*words, python=python)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads((output / "summary.json").read_text("utf-8"))["parts"]
    assert {each["part"]: each["status"] for each in outcomes} == expected, done.stdout
    for each in outcomes:
        assert (each["status"] == "ok") == (each["files"] > 0) == (each["remarks"] == [])


def test_the_parts_take_eight_minutes_at_most() -> None:
    assert sum(part.limit_s for part in PARTS) <= 480
    listed = run_script("--list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [part.name for part in PARTS]


SLEEPS = ("timeit", "-n", "1", "import time; print('begun', flush=True); time.sleep(60)")


@pytest.mark.parametrize(
    ("words", "limit_s", "status", "remark"),
    [
        (SLEEPS, 6, "stopped", "stopped at its limit of 6 s"),
        (("timeit", "-n", "1", "1 / 0"), 60, "failed", "ZeroDivisionError: division by zero"),
        (
            ("timeit", "-n", "1", "print('x: FAILED: why'); raise SystemExit(1)"),
            60,
            "failed",
            "x: FAILED: why",
        ),
        (("timeit", "-n", "1", "print('x: skipped, why')"), 60, "skipped", "x: skipped, why"),
    ],
)
def test_what_became_of_a_part(
    words: tuple[str, ...], limit_s: int, status: str, remark: str, tmp_path: Path
) -> None:
    outcome = _run("part", words, limit_s, tmp_path)
    assert (outcome.status, outcome.files) == (status, 0)
    assert remark in outcome.remarks
    assert outcome.seconds < 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--devise", "cpu"), "unrecognized arguments: --devise"),
        (("--device", "tpu"), "invalid choice: 'tpu'"),
        (("--parts", "jax,all"), "no part 'all': choose from pairs, compiled"),
    ],
)
def test_the_script_refuses(words: tuple[str, ...], message: str) -> None:
    done = run_script(*words)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_interpreter_without_pytorch(tmp_path: Path) -> None:
    done = run_script("--list", python=python_with(tmp_path / "venv"))
    assert done.returncode == 2
    assert "lacks PyTorch or NumPy" in done.stderr
