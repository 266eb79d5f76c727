"""The classes that earlier processes found by traceana's own rules, in the user's cache.

To read the rules, and to compile the patterns that a trace's names may match, takes a fifth of the
time of a report on a small trace; most traces of one user have the same names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final

import msgspec
import polars as pl

from traceana.files import UNDECODABLE, cache_folder, code_in, digest, write_whole
from traceana.trace.taxonomy import CLASS_SCHEMA

MOST_KEPT: Final = 300_000
"""Bytes of the names in the file: some thousand names, read in milliseconds."""


def read() -> pl.DataFrame:
    """Return the kept classes, as :data:`CLASS_SCHEMA`: no rows where the file cannot be used.

    It cannot where it is damaged, or was written with other rules.
    """
    nothing = pl.DataFrame(schema=CLASS_SCHEMA)
    try:
        digest, _, content = (
            (cache_folder("classes") / "classes.json").read_bytes().partition(b"\n")
        )
    except OSError:
        return nothing
    if digest != _digest(content):
        return nothing
    try:
        return pl.DataFrame(msgspec.json.decode(content), schema=CLASS_SCHEMA)
    except (*UNDECODABLE, pl.exceptions.PolarsError):
        return nothing


def write(classes: pl.DataFrame, added: pl.DataFrame) -> None:
    """Keep ``classes``, all that this process knows, or ``added`` where these are too many.

    Without a place to write, the next process classifies the names again.
    """
    found = (one for one in (classes, added) if one["name"].estimated_size() <= MOST_KEPT)
    if (chosen := next(found, None)) is None:
        return
    # Two threads may have added the same names.
    chosen = chosen.unique("name", keep="first", maintain_order=True)
    content = msgspec.json.encode(chosen.to_dict(as_series=False))
    folder = cache_folder("classes")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "classes.json", _digest(content) + b"\n" + content)
    except OSError:
        return


def _digest(content: bytes) -> bytes:
    """Return a digest of ``content`` and of what decides on a class, polars's patterns too."""
    state = f"{pl.__version__}\n{_state()}".encode()
    return hashlib.blake2b(state + content, digest_size=32).hexdigest().encode()


@cache
def _state() -> str:
    """Return a digest of the rules and of the code that applies them."""
    return digest(_deciding())


def _deciding() -> Iterator[bytes]:
    """Yield the code and the rules, file by file."""
    enrich = resources.files("traceana.enrich")
    classify = enrich / "classify"
    yield (enrich / "distinct_values.py").read_bytes()
    yield (resources.files("traceana.trace") / "taxonomy.py").read_bytes()
    for folder in (classify, classify / "rules"):
        yield from code_in(folder)
