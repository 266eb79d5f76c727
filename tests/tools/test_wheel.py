"""The wheels are whole: installed elsewhere they report on a trace, from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tools.build_scanner import LIBRARY, build
from tools.release import MANUAL

ROOT = Path(__file__).parents[2]
LARGEST: Final = 1_800_000
"""Bytes of a wheel."""
TRACE: Final = ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz"

Execute = Callable[..., str]


def executing(folder: Path) -> Execute:
    """Return a function that runs a command in ``folder``, and returns its output."""

    def run(*command: str | Path, **environment: str) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def backend(run: Execute, folder: Path) -> Path:
    """Install what ``pyproject.toml`` asks for to build into ``folder``: once for both wheels."""
    system = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    words = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile")
    run(*words, "--target", folder, *system["requires"])
    return folder


PIP: Final = (
    *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
    *(ROOT, "--wheel-dir"),
)


def hatch(source: Path, kind: str) -> tuple[str | Path, ...]:
    """Return what pip runs, which takes as long again."""
    return (
        *("env", "--chdir", source, sys.executable),
        *("-m", "hatchling", "build", "-t", kind, "-d"),
    )


def unpacked_sdist(run: Execute, backend: Path, folder: Path) -> Path:
    """Build the sdist and return its contents: a release builds its wheels from them."""
    run(*hatch(ROOT, "sdist"), folder, PYTHONPATH=str(backend))
    (archive,) = folder.glob("traceana-*.tar.gz")
    run("tar", "-xf", archive, "-C", folder)
    return folder / archive.name.removesuffix(".tar.gz")


def wheel(
    run: Execute, command: tuple[str | Path, ...], backend: Path, folder: Path, **environment: str
) -> Path:
    """Build a wheel into ``folder`` by ``command``."""
    run(*command, folder, PYTHONPATH=str(backend), **environment)
    (built,) = folder.glob("traceana-*.whl")
    assert built.stat().st_size <= LARGEST
    return built


def link_dependencies(packages: Path) -> None:
    """Link what ``traceana`` in ``packages`` asks for, and no more, from this environment.

    To unpack it all again from wheels takes longer than all the rest.
    """
    (own,) = packages.glob("traceana-*.dist-info")
    waiting, linked = needed(PathDistribution(own), set()), set[str]()
    while waiting:
        one = waiting.pop()
        found = distribution(one.name)
        assert one.specifier.contains(found.version, prereleases=True), one
        waiting += needed(found, one.extras)
        if one.name not in linked:
            linked.add(one.name)
            link(found, packages)


def needed(of: Distribution, extras: set[str]) -> list[Requirement]:
    """Return what ``of`` asks for here."""
    every = [Requirement(one) for one in of.requires or ()]
    given = [{"extra": extra} for extra in ("", *extras)]
    return [one for one in every if one.marker is None or any(map(one.marker.evaluate, given))]


def link(of: Distribution, packages: Path) -> None:
    """Link the packages and modules of ``of``; a namespace has those of others as well."""
    for file in of.files or ():
        if file.parts[0] == "..":
            continue  # a command
        for end in range(1, len(file.parts) + 1):
            place = Path(*file.parts[:end])
            source = Path(str(of.locate_file(place)))
            if source.is_file() or (source / "__init__.py").is_file():
                if not (packages / place).exists():
                    (packages / place).parent.mkdir(parents=True, exist_ok=True)
                    (packages / place).symlink_to(source)
                break


def libraries(built: Path) -> list[str]:
    """Return the compiled files in a wheel, and their source."""
    with zipfile.ZipFile(built) as archive:
        return [name for name in archive.namelist() if name.endswith((".so", ".c", ".part"))]


@pytest.mark.slow
def test_built_wheels_report_from_another_folder(tmp_path: Path) -> None:
    """Installed with what they depend on, into an environment without anything else."""
    run = executing(tmp_path)
    hatchling = backend(run, tmp_path / "backend")
    source = unpacked_sdist(run, hatchling, tmp_path / "sdist")
    # A compiler that fails, as where there is none.
    pure = wheel(run, hatch(source, "wheel"), hatchling, tmp_path / "pure", CC="false")
    assert pure.name.endswith("-py3-none-any.whl")
    assert libraries(pure) == []
    venv.create(tmp_path / "clean")
    clean = tmp_path / "clean" / "bin"
    # The environment has no pip of its own: to get one takes longer than all the rest. What is not
    # imported need not be compiled. uv installs in a sixth of the time.
    pip = (sys.executable, "-m", "pip", "--python", clean / "python", "install", "--quiet")
    uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", clean / "python")
    run(*uv, "--no-deps", pure)
    (packages,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    link_dependencies(packages)
    assert (tmp_path / "clean" / MANUAL).is_file()
    assert "without the compiled scanner" in run(clean / "traceana", "--version")
    screen = run(clean / "traceana", "report", TRACE)
    assert "convolution" in screen
    if build(tmp_path) is None:
        pytest.skip("the scanner cannot be compiled here")
    compiled = wheel(run, PIP, hatchling, tmp_path / "compiled")
    assert "-cp311-abi3-" in compiled.name
    assert libraries(compiled) == [f"traceana/readers/compiled/{LIBRARY}"]
    run(*pip, "--no-compile", "--no-deps", "--force-reinstall", compiled)
    assert (tmp_path / "clean" / MANUAL).is_file()
    assert "with the compiled scanner" in run(clean / "traceana", "--version")
    assert run(clean / "traceana", "report", TRACE) == screen
    assert "compiled scanner" in run(clean / "traceana", "info", TRACE)
