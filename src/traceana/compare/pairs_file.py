"""Pairs of layers that a user forces: a mapping, or a file of them.

A file that ends in ``.csv`` has two columns, the layer of a and that of b, with or without the
header ``a,b``. Any other is TOML without tables: ``"features.0" = "conv1"``.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from traceana.compare.align import Side
from traceana.errors import BadPairsError, NotFoundError, UnreadableError

_Entry = tuple[str, str, int]

Pairs = Mapping[str, str] | str | os.PathLike[str]
"""Layers of one run on layers of another: a mapping of names, or a file of them."""


def forced_pairs(
    given: Pairs | None, a: Side, b: Side, names: tuple[str, str] = ("a", "b")
) -> dict[int, int]:
    """Return the forced pairs, by the places of the layers in ``a`` and ``b``.

    ``names`` is what the sides are called in errors.

    Raises :class:`~traceana.errors.BadPairsError`, with the line, on what is no pair, on a layer
    that a side does not have, and on one that is paired twice.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        entries, where = [(x, y, 0) for x, y in given.items()], "pairs"
    else:
        entries, where = _read(Path(given)), str(given)
    places = [{layer.label: at for at, layer in enumerate(one.layers)} for one in (a, b)]
    found: dict[int, int] = {}
    for name_a, name_b, line in entries:
        at = f"{where}, line {line}" if line else where
        for name, of, which in zip((name_a, name_b), places, names, strict=True):
            if name not in of:
                raise BadPairsError(
                    f"{at}: {which} has no layer {name!r} that did work: traceana layers lists them"
                )
        place_a, place_b = places[0][name_a], places[1][name_b]
        if place_a in found or place_b in found.values():
            twice = name_a if place_a in found else name_b
            raise BadPairsError(f"{at}: {twice!r} is paired twice: leave one pair")
        found[place_a] = place_b
    return found


def _read(path: Path) -> list[_Entry]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist: name a file of pairs") from error
    except UnicodeDecodeError as error:
        raise BadPairsError(f"{path} is no text: write pairs as TOML or CSV") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    return _csv(path, text) if path.suffix.lower() == ".csv" else _toml(path, text)


def _csv(path: Path, text: str) -> list[_Entry]:
    rows = csv.reader(io.StringIO(text), strict=True)
    found: list[_Entry] = []
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or (not found and cells == ["a", "b"]):
                continue
            if len(cells) != 2 or not all(cells):
                raise BadPairsError(
                    f"{path}, line {rows.line_num}: two names of layers are wanted, a,b"
                )
            found.append((cells[0], cells[1], rows.line_num))
    except csv.Error as error:
        raise BadPairsError(f"{path}, line {rows.line_num}: no CSV: {error}") from error
    return found


def _toml(path: Path, text: str) -> list[_Entry]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        at = f", line {line[1]}" if line else ""
        what = re.sub(r" \(at .*\)$", "", str(error))
        raise BadPairsError(
            f'{path}{at}: no TOML ({what}): write "layer of a" = "layer of b"'
        ) from error
    lines = text.splitlines()
    found: list[_Entry] = []
    for key, value in table.items():
        line_of = next((n for n, line in enumerate(lines, 1) if key in line), 0)
        if not isinstance(value, str):
            at = f", line {line_of}" if line_of else ""
            raise BadPairsError(
                f'{path}{at}: {key!r} is given no name: write "layer of a" = "layer of b", '
                "names with points in quotes"
            )
        found.append((key, value, line_of))
    return found
