"""The context rules, read from ``context.toml``: typed, immutable."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Literal

import msgspec
import rtoml

from traceana.enrich.classify.ruleset import ClassValue

Phase = Literal["before", "main", "after"]


class PhasePattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``phase`` within a convolution of the kernels that match ``name``."""

    phase: Phase
    name: str


class ContextRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions on the name and context of an activity, and the class if they are met.

    ``context.toml`` explains the conditions; an omitted condition always holds. Columns that are
    neither in ``set`` nor in ``from_episode`` or ``from_purpose`` keep the value of the name.
    """

    id: str
    reason: str
    category: tuple[str, ...] = ()
    function: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    batched_unknown: bool = False
    precision_unknown: bool = False
    operator: str | None = None
    within: str | None = None
    purpose: tuple[str, ...] = ()
    own_purpose: bool = False
    channel: bool = False
    episode: bool = False
    many: bool | None = None
    set: dict[str, ClassValue] = msgspec.field(default_factory=dict)
    from_episode: tuple[str, ...] = ()
    from_purpose: tuple[str, ...] = ()


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of ``context.toml``."""

    purposes: tuple[str, ...]
    purposeless: str
    phases: tuple[PhasePattern, ...]
    rules: tuple[ContextRule, ...]


@functools.cache
def context() -> Context:
    """Return traceana's context rules."""
    text = (resources.files("traceana.enrich.refine") / "context.toml").read_text(encoding="utf-8")
    return msgspec.convert(rtoml.loads(text), Context)
