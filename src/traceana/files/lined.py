"""JSON with a row a line, so that a comparison of two versions shows what changed."""

from __future__ import annotations

import msgspec


def lined(content: msgspec.Struct, *lists: str) -> str:
    """Return ``content`` as JSON, a field a line; of the fields ``lists``, which end it, a row."""
    fields = msgspec.to_builtins(content)
    rows = {name: fields.pop(name) for name in lists}
    lines = [f" {_json(key)}: {_json(value)}" for key, value in fields.items()]
    for name, values in rows.items():
        listed = ",\n".join(f"  {_json(value)}" for value in values)
        lines.append(f" {_json(name)}: [\n{listed}\n ]" if listed else f" {_json(name)}: []")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
