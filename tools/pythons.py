"""Runs the tests of `make test-fast` on the other Pythons here: ``python -m tools.pythons``.

Each gets an environment of its own in ``build/pythons``, with what tests need and without
frameworks, whose tests it does not run. ``python3.12`` and so on are looked for on the PATH and
among pyenv's. What was not found is printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
HOME: Final = ROOT / "build" / "pythons"
_FRAMEWORKS: Final = ("workloads", "flax")
"""An extra, and the requirement for development that brings a framework along."""
_SELECTED: Final = "not frameworks and not slow"


def versions(project: dict[str, Any]) -> list[str]:
    """Return the minor versions that ``project`` supports, such as ``3.12``, less that of this."""
    named = (one.rpartition(" ")[2] for one in project["classifiers"])
    own = "{}.{}".format(*sys.version_info)
    return [one for one in named if re.fullmatch(r"3\.\d+", one) and one != own]


def interpreter(version: str) -> Path | None:
    """Return an interpreter of ``version``: of the PATH, else pyenv's latest."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    numbered = re.compile(rf"{re.escape(version)}\.(\d+)")
    own = {
        int(known[1]): folder / "bin" / "python"
        for folder in (pyenv.iterdir() if pyenv.is_dir() else ())
        if (known := numbered.fullmatch(folder.name))
    }
    on_path = shutil.which(f"python{version}")
    found = [Path(on_path)] if on_path else []
    # A shim of pyenv fails where no version is chosen.
    return next(
        (one for one in (*found, *(own[at] for at in sorted(own)[::-1])) if _runs(one)), None
    )


def _runs(python: Path) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def requirements(project: dict[str, Any]) -> list[str]:
    """Return what the tests need, without frameworks: traceana with its extras, then the rest."""
    extras = project["optional-dependencies"]
    wanted = sorted(set(extras) - {"dev", *_FRAMEWORKS})
    rest = [one for one in extras["dev"] if not one.startswith(("traceana[", *_FRAMEWORKS))]
    return ["--editable", f"{ROOT}[{','.join(wanted)}]", *rest]


def environment(version: str, python: Path, project: dict[str, Any]) -> Path:
    """Return the interpreter of the environment of ``version``, installed or brought up to date."""
    made = HOME / version / "bin" / "python"
    if not made.exists():
        subprocess.run([python, "-m", "venv", HOME / version], check=True)
    pip = [str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    locked = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *locked, *requirements(project)], check=True)
    return made


def main() -> int:
    """Run the tests on each other version; return 1 if some failed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    failed = False
    for version in versions(project):
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not found, not tried")
            continue
        shown = subprocess.check_output([python, "-V"], text=True).strip()
        print(f"{shown}: {python}", flush=True)
        made = environment(version, python, project)
        tests = [str(made), "-m", "pytest", "-m", _SELECTED, *sys.argv[1:]]
        code = subprocess.run(tests, cwd=ROOT, check=False).returncode
        print(f"{shown}: {'passed' if code == 0 else f'pytest ended with {code}'}", flush=True)
        failed |= code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
