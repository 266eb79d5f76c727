"""Rules, their findings, the advice made of them, and the decorator that registers a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.advise.bottleneck import Bottleneck
from traceana.advise.figures import Figures, Program

Value: TypeAlias = int | float | str | None

Kind = Literal["estimate", "upper bound", "time per example", "measurement validity", "no saving"]
"""The saving is an estimate, or an upper bound: idle time during operators and launches, which are
faster without the profiler, where its cost is not known, or work that a fused kernel does in part;
or it is of the time per example, in a step that gets longer. A finding without saving affects
measurement validity, or shows work that is already at its peak."""

_FRAMEWORKS: Final = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "JAX": "jax"}
"""The fields of a change by framework."""

SIMULATION: Final = "simulation"
"""The kind of a saving by simulation."""


class Change(msgspec.Struct, frozen=True):
    """The change for each framework.

    ``native`` is that of a program without a framework, ``inference`` that of PyTorch where there
    is no backward pass, empty where it is the same.
    """

    pytorch: str
    tensorflow: str
    jax: str
    native: str
    inference: str = ""


class Found(msgspec.Struct, frozen=True):
    """The result of a rule on a trace.

    ``saving_ns`` is the time of all devices over all steps (see
    :class:`traceana.advise.figures.Figures`), 0 without a saving. ``figures`` are the values of
    the rule's sentence, each named and formatted like the column of that name. ``evidence`` holds
    the rows of the analyses' tables that the finding is based on. ``scenario`` is the recommended
    change as ``whatif --scenario`` reads it, None where no scenario stands for it. ``variant`` is
    the one of the rule's that fits the trace, None for the rule's own change; so is ``kind``. A
    change that is made ``after`` that of another rule is found in the plan alone. ``predicted_by``
    are scenarios of PyTorch's change that do more than the finding is about, as ``compile``.
    """

    saving_ns: int
    figures: Mapping[str, Value]
    evidence: pl.DataFrame
    scenario: str | None = None
    variant: str | None = None
    kind: Kind | None = None
    after: str | None = None
    predicted_by: tuple[str, ...] = ()


Find: TypeAlias = Callable[[Figures], Found | None]


class Rule(msgspec.Struct, frozen=True):
    """A condition on a trace, with a recommendation.

    ``find`` returns None if the condition does not hold. ``sentence`` has figures of
    :class:`Found` in braces; parts in square brackets are omitted if a figure is unknown.
    ``estimate`` describes the computation of the saving, ``caveat`` the limits of the finding,
    ``simulation`` the scenarios of :class:`Found`, empty where there is none. ``variants`` are the
    changes for other devices or programs, by what they have.
    """

    id: str
    title: str
    find: Find
    kind: Kind
    sentence: str
    estimate: str
    caveat: str
    change: Change
    simulation: str
    variants: Mapping[str, Change]

    def adapted(self, program: Program, found: Found | None = None) -> Rule:
        """Return the rule in the words of the vendor of ``program``'s devices, with the kind and
        the changes that fit the program and what was ``found``."""
        variant = None if found is None else found.variant
        change = self.change if variant is None else self.variants[variant]
        texts = {name: program.words(getattr(change, name)) for name in change.__struct_fields__}
        if program.inference and texts["inference"]:
            texts["pytorch"] = texts["inference"]
        every = [*_FRAMEWORKS.values()]
        named = _FRAMEWORKS.get(program.framework or "")
        fitting = ["native"] if program.native else [named] if named else every
        texts.update(dict.fromkeys({*every, "native"}.difference(fitting), ""))
        return replace(
            self,
            kind=self.kind if found is None or found.kind is None else found.kind,
            sentence=program.words(self.sentence),
            estimate=program.words(self.estimate),
            caveat=program.words(self.caveat),
            change=replace(change, **texts),
            variants={},
        )


class Simulation(msgspec.Struct, frozen=True):
    """A saving by simulation of a ``scenario``: the ends of its interval (``prediction_level``).

    ``excess_reason`` is why it is above the rule's estimate, None where it is not, or where no
    reason is known.
    """

    scenario: str
    low_ns: int
    high_ns: int
    excess_reason: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """A rule that holds: ``saving_ns`` is per device and step, ``saving_share`` of ``saving_of``.

    That is the ``step``, or the ``capture`` in a trace without steps. With ``simulation`` the
    saving is that of :class:`traceana.whatif.whatif.Saving`, of the ``step``. ``estimate_ns`` is by
    the rule's own estimate in either case. ``predicted_by`` are the scenarios of :class:`Found`,
    where PyTorch's change fits the program. ``line`` is the line of the program with most time of
    the first row of ``evidence``, None where it is not known or the figures name it.
    """

    rule: Rule
    saving_ns: int
    saving_share: float
    saving_of: str
    estimate_ns: int
    figures: Mapping[str, Value]
    evidence: pl.DataFrame
    simulation: Simulation | None = None
    predicted_by: tuple[str, ...] = ()
    line: str | None = None

    @property
    def kind(self) -> str:
        """The kind of the saving."""
        return self.rule.kind if self.simulation is None else SIMULATION


class Stage(msgspec.Struct, frozen=True):
    """A change of the plan, made after the stages before it.

    ``scenario`` has the changes of all of them, as ``whatif --scenario`` reads it; ``step_ns`` is
    the median step that is reached, from ``low_ns`` to ``high_ns`` (``prediction_level``);
    ``from_ns`` the median step before. ``saving_ns`` is what the mean step gets shorter by this
    change, ``saving_share`` as a part of the step before the plan. ``excess_reason`` is why that is
    more than the rule's estimate, as in :class:`Simulation`.
    """

    rule: str
    scenario: str
    from_ns: int
    step_ns: int
    low_ns: int
    high_ns: int
    saving_ns: int
    saving_share: float
    excess_reason: str | None = None

    @property
    def certain(self) -> bool:
        """Whether the whole interval is shorter than the step before."""
        return self.high_ns < self.from_ns


class Advice(msgspec.Struct, frozen=True):
    """The findings: those of the ``plan`` in its order, then the largest saving first, upper bounds
    after the others; and notes on them.

    ``small`` are those whose simulated saving is below ``LEAST_SAVING`` of the step, also in the
    plan: the rules hold by their own estimates, and gates and ``--rule`` ask for them.
    ``bottleneck`` is None without work on a GPU.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    bottleneck: Bottleneck | None = None
    small: tuple[Finding, ...] = ()
    plan: tuple[Stage, ...] = ()

    @property
    def in_plan(self) -> frozenset[str]:
        """The rules of the plan."""
        return frozenset(stage.rule for stage in self.plan)


RULES: list[Rule] = []
"""All rules, in the order in which :mod:`traceana.advise` imports their modules."""


def rule(
    *,
    title: str,
    kind: Kind,
    sentence: str,
    estimate: str,
    caveat: str,
    change: Change,
    simulation: str = "",
    variants: Mapping[str, Change] | None = None,
) -> Callable[[Find], Find]:
    """Register the decorated function as a rule; its name is the rule's id."""

    def register(find: Find) -> Find:
        texts = (kind, sentence, estimate, caveat, change, simulation, variants or {})
        RULES.append(Rule(find.__name__, title, find, *texts))
        return find

    return register
