"""The recommendations that a bundle keeps: they take most of the time of a report on it.

They are used where they would be found again: with the same code, the same tables, and the same
peaks of devices. A bundle that is opened with other steps, layers or classes has its own.
"""

from __future__ import annotations

import hashlib
import io
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana.advise.bottleneck import Bottleneck
from traceana.advise.rule import RULES, Change, Finding, Rule, Simulation, Value
from traceana.files import UNDECODABLE, config_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceana.advise import Advice

_CODE: Final = (".py", ".toml")


class _Rule(msgspec.Struct, frozen=True):
    """A rule in the words that fit the program: all of it but the function."""

    id: str
    title: str
    kind: str
    sentence: str
    estimate: str
    caveat: str
    change: Change
    simulation: str


class _Finding(msgspec.Struct, frozen=True):
    """A finding; ``evidence`` is a Parquet file."""

    rule: _Rule
    saving_ns: int
    saving_share: float
    saving_of: str
    estimate_ns: int
    figures: dict[str, Value]
    evidence: bytes
    simulation: Simulation | None


class _Kept(msgspec.Struct, frozen=True):
    state: str
    findings: tuple[_Finding, ...]
    small: tuple[_Finding, ...]
    notes: tuple[str, ...]
    step_work_ns: int | None
    bottleneck: Bottleneck | None
    replayed_ns: int | None


def written(advice: Advice) -> bytes:
    """Return ``advice`` as bytes for :func:`read`."""
    return msgspec.msgpack.encode(
        _Kept(
            _state(),
            tuple(map(_packed, advice.findings)),
            tuple(map(_packed, advice.small)),
            advice.notes,
            advice.step_work_ns,
            advice.bottleneck,
            advice.replayed_ns,
        ),
        enc_hook=dict,  # mappings that are read-only
    )


def read(content: bytes) -> dict[str, Any] | None:
    """Return the fields of the :class:`~traceana.advise.Advice` in ``content``.

    None where it was found by other code or with other peaks, or cannot be decoded.
    """
    try:
        kept = msgspec.msgpack.decode(content, type=_Kept)
        if kept.state != _state():
            return None
        found, small = (tuple(map(_unpacked, some)) for some in (kept.findings, kept.small))
    except (*UNDECODABLE, pl.exceptions.PolarsError, StopIteration):
        return None
    return {
        "findings": found,
        "notes": kept.notes,
        "step_work_ns": kept.step_work_ns,
        "bottleneck": kept.bottleneck,
        "small": small,
        "replayed_ns": kept.replayed_ns,
    }


def _packed(finding: Finding) -> _Finding:
    rule = {name: getattr(finding.rule, name) for name in _Rule.__struct_fields__}
    evidence = io.BytesIO()
    finding.evidence.write_parquet(evidence)
    rest = {name: getattr(finding, name) for name in _Finding.__struct_fields__}
    rest |= {"rule": _Rule(**rule), "evidence": evidence.getvalue()}
    return _Finding(**rest)


def _unpacked(kept: _Finding) -> Finding:
    of_code = next(rule for rule in RULES if rule.id == kept.rule.id)
    texts: dict[str, Any] = {name: getattr(kept.rule, name) for name in _Rule.__struct_fields__}
    rest: dict[str, Any] = {name: getattr(kept, name) for name in _Finding.__struct_fields__}
    evidence = pl.read_parquet(io.BytesIO(kept.evidence))
    return Finding(**{**rest, "rule": Rule(find=of_code.find, **texts), "evidence": evidence})


def _state() -> str:
    """Return a digest of what the recommendations depend on besides the trace."""
    peaks = config_folder() / "peaks.toml"
    own = peaks.read_bytes() if peaks.is_file() else b""
    return hashlib.blake2b(_code().encode() + own, digest_size=16).hexdigest()


@cache
def _code() -> str:
    """Return a digest of traceana's code and data."""
    digest = hashlib.blake2b()
    for file in _files(resources.files("traceana")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _files(folder: Traversable) -> Iterator[Traversable]:
    """Yield the files of code and data below ``folder``, in the order of their names."""
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _files(one)
        elif one.name.endswith(_CODE):
            yield one
