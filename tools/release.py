"""Makes a release, and publishes nothing: ``python -m tools.release VERSION [--dry-run]``.

All happens in a clone: version and changelog (towncrier) are committed and tagged, the sdist, the
compiled and the pure wheel are built and checked (twine), and each is installed into a new
environment, where it reports on a trace. Then commit and tag are fetched into this repository, and
the files come to ``dist/``. With ``--dry-run``, or when a step fails, the repository stays as it
was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TRACE: Final = ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz"
LARGEST: Final = 2_000_000
"""Bytes of a wheel or an sdist."""
MANUAL: Final = Path("share", "man", "man1", "traceana.1")
"""Where an environment has the man page."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_IDENTITY: Final = {"user.name": "GIT_AUTHOR_NAME", "user.email": "GIT_AUTHOR_EMAIL"}
"""By setting of git: the environment variable that replaces it."""
_REFUSED: Final = re.compile(r"-linux_\w+\.whl")
"""The end of wheels that PyPI refuses: a Linux wheel needs the tag of a libc version."""
_DECLARED: Final = re.compile(r'^__version__ = "[^"]*"$', re.MULTILINE)


class RefusedError(Exception):
    """A release is not possible; the text has the reason."""


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Return the output of a command. Raises :class:`RefusedError` where it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
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


def identity(root: Path) -> dict[str, str]:
    """Return the settings of git with the name and email of the release's commit.

    Raises :class:`RefusedError` where neither the environment nor git's configuration has them.
    """
    found = {}
    for key, variable in _IDENTITY.items():
        # Without a default, git fails where the setting is missing.
        configured = run("git", "config", "--default", "", "--get", key, cwd=root)
        found[key] = os.environ.get(variable, "").strip() or configured.strip()
        if not found[key]:
            raise RefusedError(f"git has no {key}: run git config {key} VALUE, or set {variable}")
    return found


def prepare(clone: Path, version: str) -> None:
    """Commit and tag version and changelog in ``clone``."""
    home = clone / "src" / "traceana" / "version.py"
    text, count = _DECLARED.subn(f'__version__ = "{version}"', home.read_text(encoding="utf-8"))
    if count != 1:
        raise RefusedError(f"{home.name} declares {count} versions")
    home.write_text(text, encoding="utf-8")
    citation = clone / "CITATION.cff"
    cited = re.sub(r"(?m)^version: .*$", f"version: {version}", citation.read_text("utf-8"))
    citation.write_text(cited, encoding="utf-8")
    manual = clone / "docs" / MANUAL.name
    shown = re.sub(
        r'(?m)^(\.TH .*")traceana [^"]*"', rf'\1traceana {version}"', manual.read_text("utf-8")
    )
    manual.write_text(shown, encoding="utf-8")
    log = clone / "CHANGELOG.md"
    written = log.read_text("utf-8")
    if (heading := f"\n## {version}\n") in written:
        # Written by hand, as that of the first release.
        log.write_text(written.replace(heading, f"\n## {version} ({date.today()})\n"), "utf-8")
    else:
        run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version, cwd=clone)
    run("git", "add", "--all", cwd=clone)
    run("git", "commit", "--quiet", "--message", f"Release {version}", cwd=clone)
    run("git", "tag", "--annotate", f"v{version}", "--message", f"traceana {version}", cwd=clone)


def build(clone: Path) -> list[Path]:
    """Return sdist and wheels, checked: a compiled one, where there is a compiler, and a pure one.

    The wheels are built from the sdist.
    """
    folder = clone / "dist"
    run(sys.executable, "-m", "build", cwd=clone)
    if not list(folder.glob("*-none-any.whl")):
        (sdist,) = folder.glob("*.tar.gz")
        run("tar", "-xf", sdist, cwd=clone.parent)
        source = clone.parent / sdist.name.removesuffix(".tar.gz")
        # A compiler that fails, as where there is none.
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, source, CC="false")
    files = sorted(folder.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for file in files:
        if file.stat().st_size > LARGEST:
            raise RefusedError(f"{file.name} has {file.stat().st_size} bytes, limit {LARGEST}")
    return files


def smoke(file: Path, version: str, scratch: Path) -> None:
    """Install ``file`` into a new environment, look for the man page, and report on a trace."""
    folder = scratch / f"environment-{file.name}"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", file, cwd=scratch)
    command = folder / "bin" / "traceana"
    shown = run(command, "--version", cwd=scratch)
    if f"traceana {version}" not in shown:
        raise RefusedError(f"{file.name} is version {shown.strip()}")
    if not (folder / MANUAL).is_file():
        raise RefusedError(f"{file.name} installs no {MANUAL}")
    if "convolution" not in run(command, "report", TRACE, cwd=scratch):
        raise RefusedError(f"{file.name} reports no convolutions on {TRACE.name}")


def publishing(version: str, names: Sequence[str]) -> str:
    """Return what publishes the built files ``names``: those alone that PyPI accepts."""
    refused = [name for name in names if _REFUSED.search(name)]
    accepted = " ".join(f"dist/{name}" for name in names if name not in refused)
    lines = [
        f"committed and tagged v{version}. To publish:",
        f"  git push --follow-tags && twine upload {accepted}",
    ]
    lines += [
        f"PyPI refuses dist/{name} with this tag: repair it first (auditwheel repair)"
        for name in refused
    ]
    return "\n".join(lines)


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
        settings = identity(ROOT)
        with tempfile.TemporaryDirectory() as name:
            scratch, clone = Path(name), Path(name, "clone")
            run("git", "clone", "--quiet", ROOT, clone)
            for key, value in settings.items():
                run("git", "config", key, value, cwd=clone)
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
    print(publishing(version, [file.name for file in files]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
