"""The classes that earlier processes found by traceana's own rules, in the user's cache.

To read the rules, and to compile the patterns that a trace's names may match, takes a fifth of the
time of a report on a small trace; most traces of one user have the same names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib import resources
from typing import Final

import msgspec
import polars as pl

from traceana import cache
from traceana.files import UNDECODABLE, code_in, digest
from traceana.trace.taxonomy import CLASS_SCHEMA

_FILE: Final = "classes.json"
MOST_KEPT: Final = 300_000
"""Bytes of the names in the file: some thousand names, read in milliseconds."""


def read() -> pl.DataFrame:
    """Return the kept classes, as :data:`CLASS_SCHEMA`: no rows where the file cannot be used.

    It cannot where it is damaged, or was written with other rules.
    """
    nothing = pl.DataFrame(schema=CLASS_SCHEMA)
    content = cache.read("classes", _FILE, _key())
    try:
        return (
            nothing
            if content is None
            else pl.DataFrame(msgspec.json.decode(content), schema=CLASS_SCHEMA)
        )
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
    cache.write("classes", _FILE, _key(), msgspec.json.encode(chosen.to_dict(as_series=False)))


def _key() -> str:
    """Return what decides on a class: polars, the rules and the code that applies them."""
    return f"{pl.__version__}\n{_state()}"


@functools.cache
def _state() -> str:
    return digest(_deciding())


def _deciding() -> Iterator[bytes]:
    """Yield the code and the rules, file by file."""
    enrich = resources.files("traceana.enrich")
    classify = enrich / "classify"
    yield (resources.files("traceana.columns") / "distinct.py").read_bytes()
    yield (resources.files("traceana.trace") / "taxonomy.py").read_bytes()
    for folder in (classify, classify / "rules"):
        yield from code_in(folder)
