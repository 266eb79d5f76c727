"""Edits of CSV tables and of TOML files."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from typing import Final

from tests.fuzz import values


def edited_csv(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Return the table with one edit."""
    lines = content.decode("utf-8", "replace").splitlines(keepends=True)
    if not lines:
        return content, "empty"
    pick = rng.randrange(8)
    place = rng.randrange(len(lines))
    if pick < 2:
        return _line_edited(rng, lines, place, drop=pick == 0)
    if pick == 2:
        rng.shuffle(lines)
        return _joined(lines), "lines shuffled"
    if pick == 3:
        text = "".join(lines)
        old, new = rng.choice((('"', ""), (",", ";"), ("\n", "\r\n"), ('"', "'"), (".", ",")))
        return text.replace(old, new).encode(), f"{old!r} replaced by {new!r}"
    if pick == 4:
        lines.insert(place, rng.choice(('"', ",,,,\n", "\x00\n", "==ERROR== x\n", '"a\nb","c"\n')))
        return _joined(lines), f"another line at {place}"
    try:
        cells = next(csv.reader(io.StringIO(lines[place])))
    except (csv.Error, StopIteration):
        return content, "no cells"
    if not cells:
        return content, "no cells"
    at = rng.randrange(len(cells))
    if pick == 5:
        del cells[at]
        what = "dropped"
    else:
        cells[at] = rng.choice(
            (values.text(rng), str(values.integer(rng)), "nan", "inf", "1e400", "n/a", "1,234.5")
        )
        what = f"set to {cells[at]!r:.40}"
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(cells)
    lines[place] = out.getvalue()
    return _joined(lines), f"cell {at} of line {place} {what}"


def _line_edited(
    rng: random.Random, lines: list[str], place: int, *, drop: bool
) -> tuple[bytes, str]:
    """Return the file without line ``place``, or with another of its lines before it."""
    if drop:
        del lines[place]
        return _joined(lines), f"line {place} dropped"
    lines.insert(place, lines[rng.randrange(len(lines))])
    return _joined(lines), f"a line doubled at {place}"


def _joined(lines: list[str]) -> bytes:
    return "".join(lines).encode("utf-8", "surrogatepass")


_VALUES: Final = (
    "true", "1", "-1", "1.5", "nan", "inf", "[]", "{}", '""', "'''x'''", "1979-05-27", "[[1]]",
    "9223372036854775808", "''", "'('", "'[a-'", r"'(a+)+$'", r"'\b(?P<x>'", r"'(?<=a)b'",
    r"'\p{Greek}'", "'a{1000000}'", "'(a|b)*c{1,1000}'", "'.*' ", "'" + "a|" * 20_000 + "'",
)  # fmt: skip


def edited_toml(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Return the file with one edit."""
    lines = content.decode("utf-8", "replace").splitlines(keepends=True)
    if not lines:
        return content, "empty"
    pick = rng.randrange(9)
    place = rng.randrange(len(lines))
    if pick < 2:
        return _line_edited(rng, lines, place, drop=pick == 0)
    if pick == 2:
        depth = rng.choice((10, 500, 3_000, 100_000))
        opening, closing = rng.choice((("[", "]"), ("{a=", "}")))
        inside = "1" if opening != "[" else ""
        lines.append(f"x = {opening * depth}{inside}{closing * depth}\n")
        return _joined(lines), f"nested {depth} deep"
    if pick == 3:
        depth = rng.choice((10, 500, 20_000))
        lines.insert(place, f"[{'.'.join('a' * depth)}]\n")
        return _joined(lines), f"a table {depth} deep"
    if pick in (4, 5, 6):
        value = rng.choice((*_VALUES, json.dumps(values.text(rng))))
        lines[place] = re.sub(r"=.*", lambda _: f"= {value}", lines[place], count=1)
        return _joined(lines), f"line {place} = {value!r:.40}"
    if pick == 7:
        lines[place] = re.sub(r"\w+", values.text(rng).replace("\\", r"\\"), lines[place], count=1)
        return _joined(lines), f"a word of line {place} replaced"
    repeated = lines * rng.choice((2, 50))
    return _joined(repeated), "lines repeated"
