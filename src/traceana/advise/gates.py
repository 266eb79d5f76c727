"""Gates for continuous integration: rules that must not hold, figures with a limit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceana.advise.metrics import METRICS, Metric, Unit
from traceana.advise.registry import RULES
from traceana.errors import BadGateError

if TYPE_CHECKING:
    from traceana.advise.advice import Advice
    from traceana.advise.figures import Figures

_LIMIT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-zµ%]*)")
_LONGEST: Final = 40

SUFFIXES: Final[dict[Unit, dict[str, float]]] = {
    "share": {"%": 0.01, "": 1.0},
    "time": {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    "count": {"": 1.0},
    "bytes": {"": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9},
}
"""What may stand behind a limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure and the most it may be, in the metric's unit."""

    metric: Metric
    most: float
    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A gate that does not pass: a rule that holds, or a limit and the figure (None: unknown)."""

    gate: str | Limit
    value: float | None = None

    @property
    def unknown(self) -> bool:
        """Whether the trace does not hold the figure, so that nothing is decided."""
        return isinstance(self.gate, Limit) and self.value is None


def rules_of(text: str) -> tuple[str, ...]:
    """Return the ids of ``a,b``; raises :class:`~traceana.errors.BadGateError` on an unknown one.

    ``any`` stands for all rules that save something.
    """
    known = {rule.id: rule for rule in RULES}
    found: list[str] = []
    for word in (piece.strip() for piece in text.split(",")):
        if word == "any":
            found += [rule.id for rule in RULES if rule.kind in ("estimate", "at most")]
        elif word in known:
            found.append(word)
        else:
            raise BadGateError(
                f"no rule {_cut(word)!r} to fail on: `traceana advise --list` names them"
            )
    return tuple(dict.fromkeys(found))


def limit_of(text: str) -> Limit:
    """Return the limit of ``name=5%``; raises :class:`~traceana.errors.BadGateError`."""
    name, sign, limit = (piece.strip() for piece in text.partition("="))
    metric = next((one for one in METRICS if one.name == name), None)
    if metric is None:
        names = ", ".join(one.name for one in METRICS)
        raise BadGateError(f"no figure {_cut(name)!r} to limit: there are {names}")
    match = _LIMIT.fullmatch(limit) if sign else None
    suffixes = SUFFIXES[metric.unit]
    if match is None or match.group(2) not in suffixes:
        raise BadGateError(
            f"no limit {_cut(limit)!r} for {name}: write a number"
            f"{_with([suffix for suffix in suffixes if suffix], '' not in suffixes)}, "
            f"as in {name}={_EXAMPLE[metric.unit]}"
        )
    number, suffix = match.groups()
    return Limit(metric, float(number) * suffixes[suffix], limit)


def broken(
    figures: Figures, advice: Advice, rules: Sequence[str], limits: Sequence[Limit]
) -> list[Broken]:
    """Return the gates that a trace fails: ``advice`` is on it, and ``figures`` are of it.

    A figure that the trace does not hold is among them, as unknown.
    """
    holding = {finding.rule.id for finding in advice.findings}
    found = [Broken(rule) for rule in rules if rule in holding]
    for limit in limits:
        value = limit.metric.of(figures)
        if value is None or value > limit.most:
            found.append(Broken(limit, value))
    return found


_EXAMPLE: Final[dict[Unit, str]] = {
    "share": "5%",
    "time": "120ms",
    "count": "10",
    "bytes": "50MB",
}


def _with(suffixes: list[str], needed: bool) -> str:
    if not suffixes:
        return ""
    return f" with {'' if needed else 'or without '}{' or '.join(suffixes)}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
