"""How extras are installed: from a checkout, not by the name, which is free on PyPI."""

from __future__ import annotations

import re
from pathlib import Path

from traceana.errors import how_to_install

ROOT = Path(__file__).parents[1]
TEXTS = {".1", ".ipynb", ".md", ".py", ".sh", ".yml"}


def test_an_extra_is_installed_from_a_checkout() -> None:
    assert how_to_install("html") == "pip install '.[html]' (in a checkout of traceana)"


def test_nothing_is_installed_by_name() -> None:
    files = [ROOT / name for name in ("README.md", "Dockerfile", "action.yml")]
    for name in ("ci", "docs", "src", "workloads"):
        files += [path for path in (ROOT / name).rglob("*") if path.suffix in TEXTS]
    # Behind @ is an address: the name is not looked up.
    by_name = re.compile(r"traceana\[[a-z,]+\](?! @ )")
    assert len(files) > 100
    found = [path for path in files if by_name.search(path.read_text(encoding="utf-8"))]
    assert found == []
