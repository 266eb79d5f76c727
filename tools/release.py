"""Makes a release, and publishes nothing: ``python -m tools.release VERSION [--dry-run]``.

All happens in a clone: version and changelog (towncrier) are committed and tagged, wheel and sdist
are built and checked (twine), and each is installed into a new environment, where it reports on a
trace. Then commit and tag are fetched into this repository, and the files come to ``dist/``. With
``--dry-run``, or when a step fails, the repository stays as it was.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TRACE: Final = ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz"
LARGEST: Final = 2_000_000
"""Bytes of a wheel or an sdist."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_DECLARED: Final = re.compile(r'^__version__ = "[^"]*"$', re.MULTILINE)


class RefusedError(Exception):
    """A release is not possible; the text has the reason."""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Return the output of a command. Raises :class:`RefusedError` where it fails."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        shown = " ".join(str(word) for word in words)
        raise RefusedError(f"{shown}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def refuse_unclean(root: Path, version: str) -> None:
    """Raise :class:`RefusedError` where the tree has changes, or the version is bad or exists."""
    if not _VERSION.fullmatch(version):
        raise RefusedError(f"{version} is not a version: 1.2.3, 1.2.3rc1")
    if run("git", "status", "--porcelain", cwd=root):
        raise RefusedError("the tree has changes: commit or remove them")
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        raise RefusedError(f"the tag v{version} exists")


def prepare(clone: Path, version: str) -> None:
    """Commit and tag version and changelog in ``clone``."""
    home = clone / "src" / "traceana" / "__init__.py"
    text, count = _DECLARED.subn(f'__version__ = "{version}"', home.read_text(encoding="utf-8"))
    if count != 1:
        raise RefusedError(f"{home.name} declares {count} versions")
    home.write_text(text, encoding="utf-8")
    citation = clone / "CITATION.cff"
    cited = re.sub(r"(?m)^version: .*$", f"version: {version}", citation.read_text("utf-8"))
    citation.write_text(cited, encoding="utf-8")
    run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version, cwd=clone)
    run("git", "add", "--all", cwd=clone)
    run("git", "commit", "--quiet", "--message", f"Release {version}", cwd=clone)
    run("git", "tag", "--annotate", f"v{version}", "--message", f"traceana {version}", cwd=clone)


def build(clone: Path) -> list[Path]:
    """Return wheel and sdist, checked; the wheel is built from the sdist."""
    run(sys.executable, "-m", "build", cwd=clone)
    files = sorted((clone / "dist").iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for file in files:
        if file.stat().st_size > LARGEST:
            raise RefusedError(f"{file.name} has {file.stat().st_size} bytes, limit {LARGEST}")
    return files


def smoke(file: Path, version: str, scratch: Path) -> None:
    """Install ``file`` into a new environment and report on a trace."""
    folder = scratch / f"environment-{file.name}"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", file, cwd=scratch)
    command = folder / "bin" / "traceana"
    shown = run(command, "--version", cwd=scratch)
    if f"traceana {version}" not in shown:
        raise RefusedError(f"{file.name} is version {shown.strip()}")
    if "convolution" not in run(command, "report", TRACE, cwd=scratch):
        raise RefusedError(f"{file.name} reports no convolutions on {TRACE.name}")


def main(arguments: list[str]) -> int:
    """Make the release; return the exit status."""
    dry = "--dry-run" in arguments
    given = [word for word in arguments if word != "--dry-run"]
    if len(given) != 1:
        print("usage: python -m tools.release VERSION [--dry-run]", file=sys.stderr)
        return 2
    version = given[0]
    try:
        refuse_unclean(ROOT, version)
        with tempfile.TemporaryDirectory() as name:
            scratch, clone = Path(name), Path(name, "clone")
            run("git", "clone", "--quiet", ROOT, clone)
            for key in ("user.name", "user.email"):
                run("git", "config", key, run("git", "config", key).strip(), cwd=clone)
            prepare(clone, version)
            for file in (files := build(clone)):
                smoke(file, version, scratch)
                print(f"{file.name}: {file.stat().st_size:,} bytes, checked and run")
            if dry:
                print("dry run: nothing was changed")
                return 0
            run("git", "pull", "--quiet", "--ff-only", "--tags", clone, "HEAD")
            (ROOT / "dist").mkdir(exist_ok=True)
            for file in files:
                shutil.copy2(file, ROOT / "dist")
    except RefusedError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(
        f"committed and tagged v{version}. To publish: git push --follow-tags, twine upload dist/*"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
