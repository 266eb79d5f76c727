"""Exact-output tests: rendered text compared with a file beside the test.

``UPDATE_GOLDEN=1 pytest`` writes the files anew; look at their difference before committing them.
"""

from __future__ import annotations

import os
from pathlib import Path


def check(text: str, file: Path) -> None:
    """Assert that ``text`` equals the content of ``file``."""
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
