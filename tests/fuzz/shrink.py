"""Makes a failing input smaller, as long as it fails in the same way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.fuzz.campaign import Campaign, Failure
from tests.fuzz.mutations import Input

SMALLEST = 64
"""Blocks of fewer bytes are not tried: each try costs a process."""


def shrunk(campaign: Campaign, failure: Failure, seconds: float) -> Input:
    """Return a smaller input that fails as ``failure`` does, found in at most ``seconds``.

    First the events of a JSON document are left out, in halves, quarters and so on; then blocks of
    bytes. Failures for time and memory are left as they are: each try would take as long.
    """
    given = failure.given
    content = given.files[given.damaged]
    if content is None or failure.outcome.kind in ("hang", "memory"):
        return given
    until = time.monotonic() + seconds

    def fails(smaller: bytes) -> bool:
        candidate = replace(given, files={**given.files, given.damaged: smaller})
        found = campaign.alone(failure.format, candidate, failure.number)
        return found.outcome.group == failure.outcome.group

    for pieces, joined, least in (_events(content), (_bytes(content), b"".join, SMALLEST)):
        if pieces:
            content = joined(_fewer(pieces, joined, fails, least, until))
            pieces = None
    return replace(given, files={**given.files, given.damaged: content})


def _fewer(
    pieces: Sequence[bytes],
    joined: Callable[[Sequence[bytes]], bytes],
    fails: Callable[[bytes], bool],
    least: int,
    until: float,
) -> list[bytes]:
    """Leave out as many pieces as possible: blocks of half of them first, then smaller ones."""
    left = list(pieces)
    size = len(left) // 2
    while size >= least and time.monotonic() < until:
        at = 0
        while at < len(left) and time.monotonic() < until:
            without = left[:at] + left[at + size :]
            if without and fails(joined(without)):
                left = without
            else:
                at += size
        size //= 2
    return left


def _events(
    content: bytes,
) -> tuple[list[bytes] | None, Callable[[Sequence[bytes]], bytes], int]:
    try:
        document = json.loads(content)
        events = document["traceEvents"] if isinstance(document, dict) else document
        pieces = [json.dumps(event).encode() for event in events]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, b"".join, 1
    if isinstance(document, dict):
        head = json.dumps({k: v for k, v in document.items() if k != "traceEvents"}).encode()
        before = (head[:-1] + b", " if len(head) > 2 else b"{") + b'"traceEvents": ['
        return pieces, lambda some: before + b",\n".join(some) + b"]}", 1
    return pieces, lambda some: b"[" + b",\n".join(some) + b"]", 1


def _bytes(content: bytes) -> list[bytes]:
    return [content[at : at + 1] for at in range(len(content))]
