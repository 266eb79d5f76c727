"""Iterations of servers of language models: the ranges with which they mark them.

The text of a range has the requests of the iteration by phase: prefill reads the prompt, decode
generates a token a request (more, where it speculates).

- vLLM: ``execute_context_1(888)_generation_3(3)``: requests, and in parentheses their tokens.
  Variants have the iteration's number in front and more sums behind the tokens. Another
  form is ``execute_new_1_cached_3``: new requests and running ones.
- SGLang: ``step[EXTEND bs=2 toks=107]``, ``step[DECODE bs=16]``, ``step[MIXED bs=2]``. With sums
  for a roofline, of prefill ``c_…`` and of decode ``g_…``: ``step[MIXED bs=5 c=2 g=3 c_sq=104 …
  g_sq=3 …]``, where ``sq`` are tokens.
- TensorRT-LLM: ``[Executor] _forward_step 12: 1 ctx reqs, 888 ctx tokens, 3 gen reqs``; the name in
  brackets, the number and the tokens are not in all versions.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
import polars as pl

_COUNT: Final = "[0-9]{1,12}"
"""Numbers of more digits are not counts."""

_TEXTS: Final = {
    "vLLM": (
        r"^execute_(?:#_)?context_<prefill>\((?:sq)?<prefill_tokens>[^()]*\)"
        r"_generation_<decode>\((?:sq)?<decode_tokens>[^()]*\)$"
    ),
    "vLLM, new and cached": "^execute_new_<prefill>_cached_<decode>$",
    "SGLang": (
        r"^step\[(?P<mode>[A-Z][A-Z0-9_]{0,39}) bs=<requests>(?: toks=<tokens>)?"
        r"(?: (?:c_sq=<prefill_tokens>|g_sq=<decode_tokens>|[a-z_]{1,40}=[0-9]{1,40}))*\]$"
    ),
    "TensorRT-LLM": (
        r"^(?:\[Executor\] )?_forward_step(?: <number>)?: <prefill> ctx reqs"
        r"(?:, <prefill_tokens> ctx tokens)?, <decode> gen reqs$"
    ),
}
"""The texts by server: ``<name>`` is a number of that name, ``#`` another."""

SERVERS: Final = {
    name: re.sub(r"(?<!\?P)<(\w+)>", rf"(?P<\1>{_COUNT})", text).replace("#", _COUNT)
    for name, text in _TEXTS.items()
}
"""The pattern of the texts, by server."""

ITERATION: Final = "|".join(re.sub(r"\?P<\w+>", "?:", pattern) for pattern in SERVERS.values())
"""The texts of all servers."""

SOURCE: Final = " iteration"
"""The end of the ``source`` of steps that are iterations: ``vLLM iteration``."""

_MODES: Final = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed"}


class Iteration(msgspec.Struct, frozen=True):
    """The requests and tokens of an iteration, parsed from its range; None: not recorded.

    ``phase`` is prefill, decode, mixed, idle (no requests), or another mode of SGLang in small
    letters.
    """

    server: str
    phase: str
    requests: int
    tokens: int | None
    number: int | None = None


def iteration(text: str) -> Iteration | None:
    """Parse the text of a range; None if it does not mark an iteration."""
    for name, pattern in SERVERS.items():
        if (match := re.match(pattern, text)) is None:
            continue
        server = name.partition(",")[0]
        values = {key: int(part) for key, part in match.groupdict().items()
                  if part is not None and part.isdigit()}  # fmt: skip
        if mode := match.groupdict().get("mode"):
            phase = _MODES.get(mode, mode.lower())
            requests = values["requests"]
            # Of a mixed iteration tokens are given by phase only.
            if {"prefill_tokens", "decode_tokens"} <= values.keys():
                all_tokens: int | None = values["prefill_tokens"] + values["decode_tokens"]
            else:
                as_many = phase == "decode" or not requests
                all_tokens = values.get("tokens", requests if as_many else None)
            return Iteration(server, phase, requests, all_tokens)
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


def iterations(texts: pl.Series) -> dict[str, Iteration]:
    """Parse iteration markers among ``texts``: {text: iteration}."""
    distinct = texts.unique().cast(pl.String).drop_nulls()
    marks = distinct.filter(distinct.str.contains(ITERATION))
    return {text: mark for text in marks if (mark := iteration(text)) is not None}
