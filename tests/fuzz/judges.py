"""Whether a damaged file is still a sound file of its format, by readers that are not traceana's.

Python's json, gzip and csv, SQLite's integrity check, pyarrow, and the plain walk of
:mod:`tests.fuzz.space`. Where they find nothing wrong, nobody can know that a byte was changed:
a digit in a number is another digit. Where they do, a reader must notice.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from tests.fuzz import space

GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class Judgement:
    """``broken`` is what is wrong with the file; ``events`` how many it has, None where unknown."""

    broken: str | None
    events: int | None = None


SOUND: Final = Judgement(None)


def judged(name: str, content: bytes, kind: str) -> Judgement:
    """Return the judgement on a file of the ``kind`` of its seed's content."""
    if content.startswith(GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            return Judgement(f"gzip: {error}")
    if name.endswith(".json"):
        kind = "json"
    if kind == "json":
        return _json(content)
    if kind == "sqlite":
        return _sqlite(content)
    if kind == "protobuf":
        events = space.event_count(content)
        return Judgement("protobuf" if events is None else None, events)
    if kind == "table":
        return _table(name, content)
    if kind == "csv" and name.endswith(".csv"):
        return _csv(content)
    return SOUND


def _json(content: bytes) -> Judgement:
    repeated: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) < len(found) and sum(key == "traceEvents" for key, _ in found) > 1:
            repeated.append("traceEvents")
        return made

    try:
        document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=pairs)
    except RecursionError:
        return SOUND
    except ValueError as error:
        return Judgement(f"json: {error!s:.60}")
    if repeated:
        return Judgement("traceEvents twice")
    events = document.get("traceEvents") if isinstance(document, dict) else document
    # What is no object is no event, and may be counted as a malformed one.
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return SOUND
    return Judgement(None, len(events))


def _sqlite(content: bytes) -> Judgement:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = bytes
        try:
            connection.deserialize(content)
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            return Judgement(f"sqlite: {error!s:.60}")
    return SOUND if found == b"ok" else Judgement(f"sqlite: {found.decode('utf-8', 'replace')}")


def _table(name: str, content: bytes) -> Judgement:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if name.endswith(".parquet"):
            pq.read_table(pa.BufferReader(content), use_threads=False).validate(full=True)
        else:
            pa.ipc.open_stream(content).read_all().validate(full=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        return Judgement(f"arrow: {error!s:.60}")
    return SOUND


_LAUNCH: Final = re.compile(r'"ID",|"\d+"')


def _csv(content: bytes) -> Judgement:
    """Return the judgement on a table of Nsight Compute; the program's output before it is any."""
    begin = content.find(b'"ID",')
    if begin < 0:
        return SOUND
    try:
        text = content[begin:].decode()
    except UnicodeDecodeError:
        return Judgement("csv: no UTF-8")
    if "\0" in text:
        return Judgement("csv: zero bytes")
    try:
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        return Judgement(f"csv: {error}")
    wide = len(rows[0])
    # On the page `details` the row of a metric ends behind its value.
    least = rows[0].index("Metric Value") + 1 if "Metric Value" in rows[0] else wide
    for row in rows[1:]:
        if row and not row[0].startswith("==") and not least <= len(row) <= wide:
            return Judgement(f"csv: a row of {len(row)} cells, not {least} to {wide}")
    return SOUND
