"""Iterations of servers of language models: the ranges with which they mark them.

The text of a range has the requests of the iteration by phase: prefill reads the prompt, decode
generates a token a request (more, where it speculates).

- vLLM: ``execute_context_1(888)_generation_3(3)``: requests, and in parentheses their tokens.
  Variants have the iteration's number in front and more sums behind the tokens. Before version 0.12
  ``execute_new_1_cached_3``: new requests and running ones.
- SGLang: ``step[EXTEND bs=2 toks=107]``, ``step[DECODE bs=16]``, ``step[MIXED bs=2]``.
- TensorRT-LLM: ``[Executor] _forward_step 12: 1 ctx reqs, 888 ctx tokens, 3 gen reqs``; the number
  and the tokens are not in all versions.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

SERVERS: Final = {
    "vLLM": (
        r"^execute_(?:\d+_)?context_(?P<prefill>\d+)\((?:sq)?(?P<prefill_tokens>\d+)[^()]*\)"
        r"_generation_(?P<decode>\d+)\((?:sq)?(?P<decode_tokens>\d+)[^()]*\)$"
    ),
    "vLLM, new and cached": r"^execute_new_(?P<prefill>\d+)_cached_(?P<decode>\d+)$",
    "SGLang": r"^step\[(?P<mode>[A-Z_]+) bs=(?P<requests>\d+)(?: toks=(?P<tokens>\d+))?\]$",
    "TensorRT-LLM": (
        r"^\[Executor\] _forward_step(?: (?P<number>\d+))?: (?P<prefill>\d+) ctx reqs"
        r"(?:, (?P<prefill_tokens>\d+) ctx tokens)?, (?P<decode>\d+) gen reqs$"
    ),
}
"""The pattern of the texts, by server."""

ITERATION: Final = "|".join(re.sub(r"\?P<\w+>", "?:", pattern) for pattern in SERVERS.values())
"""The texts of all servers."""

SOURCE: Final = " iteration"
"""The end of the ``source`` of steps that are iterations: ``vLLM iteration``."""

_MODES: Final = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed"}


class Iteration(msgspec.Struct, frozen=True):
    """What the text of an iteration says; None: not recorded.

    ``phase`` is prefill, decode, mixed, idle (no requests), or another mode of SGLang in small
    letters.
    """

    server: str
    phase: str
    requests: int
    tokens: int | None
    number: int | None = None


def iteration(text: str) -> Iteration | None:
    """Return what ``text`` says of an iteration, None where it marks none."""
    for name, pattern in SERVERS.items():
        if (found := re.match(pattern, text)) is None:
            continue
        server = name.partition(",")[0]
        values = {key: int(part) for key, part in found.groupdict().items()
                  if part is not None and part.isdigit()}  # fmt: skip
        if mode := found.groupdict().get("mode"):
            phase = _MODES.get(mode, mode.lower())
            tokens = values.get("tokens", values["requests"] if phase == "decode" else None)
            return Iteration(server, phase, values["requests"], tokens)
        prefill, decode = values["prefill"], values["decode"]
        phase = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}.get(
            (prefill > 0, decode > 0), "idle"
        )
        of_prefill = values.get("prefill_tokens", None if prefill else 0)
        # A request that generates has a token in each iteration, unless it speculates.
        of_decode = values.get("decode_tokens", decode)
        tokens = None if of_prefill is None else of_prefill + of_decode
        return Iteration(server, phase, prefill + decode, tokens, values.get("number"))
    return None
