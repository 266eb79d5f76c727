"""JSON files with a line per item, in which two versions can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_by_line(path: Path, content: Mapping[str, Any], *lists: str) -> None:
    """Write ``content`` with a line per field; the fields ``lists`` have a line per item."""
    lines = []
    for name, value in content.items():
        text = json.dumps(value, ensure_ascii=False)
        if name in lists and value:
            items = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
            text = f"[\n{items}\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
