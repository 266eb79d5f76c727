"""The recommendations that a bundle keeps: they take most of the time of a report on it.

They are used where they would be found again: with the same code, the same tables, and the same
peaks of devices. A bundle that is opened with other steps, layers or classes has its own.
"""

from __future__ import annotations

import io
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from traceana.advise.rule import RULES, Advice
from traceana.files import UNDECODABLE, code_in, config_folder, digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable


def written(advice: Advice) -> bytes:
    """Return ``advice`` as bytes for :func:`read`."""
    return msgspec.msgpack.encode((_state(), advice), enc_hook=_packed)


def read(content: bytes) -> Advice | None:
    """Return the recommendations in ``content``.

    None where they were found by other code or with other peaks, or cannot be decoded.
    """
    try:
        state, advice = msgspec.msgpack.decode(content, type=tuple[str, msgspec.Raw])
        if state != _state():
            return None
        return msgspec.msgpack.decode(advice, type=Advice, dec_hook=_unpacked)
    except (*UNDECODABLE, pl.exceptions.PolarsError, KeyError):
        return None


def _packed(value: Any) -> Any:
    """Return a frame as a Parquet file, a rule's function as its name, a mapping as itself."""
    if isinstance(value, pl.DataFrame):
        content = io.BytesIO()
        value.write_parquet(content)
        return content.getvalue()
    return value.__name__ if callable(value) else dict(value)


def _unpacked(kind: Any, value: Any) -> Any:
    if kind is pl.DataFrame:
        return pl.read_parquet(io.BytesIO(value))
    return {rule.id: rule.find for rule in RULES}[value]


def _state() -> str:
    """Return a digest of what the recommendations depend on besides the trace."""
    peaks = config_folder() / "peaks.toml"
    return digest((_code().encode(), peaks.read_bytes() if peaks.is_file() else b""))


@cache
def _code() -> str:
    """Return a digest of traceana's code and data."""
    return digest(part for one in _folders(resources.files("traceana")) for part in code_in(one))


def _folders(folder: Traversable) -> Iterator[Traversable]:
    yield folder
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _folders(one)
