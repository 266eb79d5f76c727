"""Scenarios: what is changed, as text, as TOML, or by a name.

In text a scenario is one change or several, joined by `` + ``::

    conv x 0.6                 work of a class takes 0.6 times as long
    conv/winograd x 0.5..0.8   of a class and part; a factor that is known as an interval only
    layer:features.* x 0       of layers, by a pattern of their paths
    kernel:.*sgemm.* x 0.5     of kernels, by a regular expression of their names
    operator:aten::linear x 2  of what an operator launched
    direction:optimizer x 0.5  work of a pass of training: forward, backward, optimizer
    range:logging x 0          time of host threads in an annotation
    host x 0.7                 time of host threads
    launch x 0.5               time of calls that launch kernels
    no layout                  the work does not run, and the host does not launch it
    no data                    the host does not wait for the next batch
    no sync                    the host does not wait for the device
    workers:4                  as many processes make the batches, beside the step
    gpu:H100                   work on another GPU, by its peaks
    batch:2                    twice as many examples in a batch
    link:2                     a link with twice the bandwidth between ranks
    ranks:16                   as many ranks, each with the same work
    recording:FILE             convolutions take as long as those of their shapes in another trace,
                               or as the fastest of timed algorithms; fft@FILE: as that one

or one of :data:`NAMED`. The words before the factor are those of :data:`WORDS`. Scenarios of the
ranks of a job are in :mod:`traceana.whatif.equal_ranks`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import polars as pl
import rtoml
from msgspec.structs import force_setattr, replace

from traceana.errors import UsageError, suggested
from traceana.settings import HOST_OF_AUTOCAST, HOST_OF_COMPILED, LEFT_BY_GRAPHS
from traceana.trace.taxonomy import CATEGORIES, SEARCH

What: TypeAlias = Literal["work", "host", "launch", "data", "sync"]
"""What is changed: work, of a device or of operators of the CPU; the time of host threads; calls
that launch kernels; waits for the next batch; waits for the device."""

WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    **{category: {"category": category} for category in (*CATEGORIES, SEARCH)},
    "activations": {"category": "activation"},
    "convolution": {"category": "conv"},
    "copies": {"category": "memcpy"},
    "memsets": {"category": "memset"},
    "collectives": {"category": "collective"},
    "layout conversion": {"category": "layout"},
    "compiler-fused": {"category": "fused"},
    "passes": {"category": "pass"},
    "unclassified": {"category": "other"},
    "norm": {"category": "normalization"},
    "relu": {"category": "activation", "part": "relu"},
    "gelu": {"category": "activation", "part": "gelu"},
    "silu": {"category": "activation", "part": "silu"},
    "host": {"what": "host"},
    "cpu": {"what": "host"},
    "launch": {"what": "launch"},
    "data": {"what": "data"},
    "sync": {"what": "sync"},
    "synchronization": {"what": "sync"},
}
"""The words that select what is changed, and the fields of :class:`Change` that they stand for:
classes, by the names of the tables and of the screens, functions of activation kernels, and the
host's time."""

_SELECTORS: Final = ("direction", "layer", "kernel", "operator")
_PLAIN_MODELS: Final = ("tensor-cores", "amp", "pinned", "fused-optimizer")
_RATIOS: Final = ("batch", "link")
_MODELS: Final = (*_PLAIN_MODELS, "gpu", "batch", "link", "ranks", "recording")
_CHANGE: Final = re.compile(
    r"(?s)\s*(?P<no>no\s+)?(?P<what>.+?)\s*(?:\s[x\u00d7*]\s*(?P<factor>\S+))?\s*"
)
_LARGEST_FACTOR: Final = 1000.0
_MOST_RANKS: Final = 1_000_000
_MOST_WORKERS: Final = 10_000


def _selected_by(word: str) -> Mapping[str, str]:
    """Return the fields that ``word`` stands for."""
    if (fields := WORDS.get(word.lower())) is not None:
        return fields
    selectors = ", ".join(f"{selector}:PATTERN" for selector in (*_SELECTORS, "range"))
    raise UsageError(
        f"{word!r} is not a known word{suggested(word.lower(), WORDS)}: use {', '.join(WORDS)}, "
        f"{selectors}, or without a factor {_words_with_or(NAMED)}"
    )


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change. Work is selected by all fields that are given; ``class`` in TOML is a category,
    or a word of :data:`WORDS` for one. The time of host threads is selected by ``operator``,
    ``range`` (an annotation) or the ``direction`` optimizer.

    ``factor`` is how many times as long it takes, a number or [least, most]; with ``remove`` it
    does not run, nor do the operators and calls that launch nothing else. The other fields that
    select work have no meaning for the host, nor has ``range`` for work. A wait for the device is
    removed, or has no factor.

    ``by`` gives each piece of the selected work a factor of its own: ``tensor-cores``, ``amp``,
    ``pinned``, ``fused-optimizer``, ``gpu:NAME``, ``batch:RATIO``, ``link:RATIO``, ``ranks:COUNT``
    or ``recording:FILE``. ``recordings`` are traces with other batches, as ratios and paths. What
    runs ``beside`` holds nothing up, but a step takes at least as long. ``input_gradient`` selects
    convolutions that compute the gradient of the network's input. What is ``implied`` need not be
    in the trace, where another change of the scenario is. A change ``outside_loading`` leaves work
    and launches of data loading as they are; so does one of the host's time in an ``operator``.
    ``between_layers`` selects the host's time between two operators of layers: Python of modules.
    """

    what: What = "work"
    category: str | None = msgspec.field(default=None, name="class")
    part: str | None = None
    direction: str | None = None
    layer: str | None = None
    kernel: str | None = None
    operator: str | None = None
    range: str | None = None
    factor: float | tuple[float, float] = 1.0
    remove: bool = False
    by: str | None = None
    recordings: tuple[tuple[float, str], ...] = ()
    beside: bool = False
    input_gradient: bool = False
    implied: bool = False
    outside_loading: bool = False
    between_layers: bool = False

    def __post_init__(self) -> None:
        """Set the fields that a word stands for; raise :class:`UsageError` where a field has
        no meaning."""
        if self.category is not None:
            fields = _selected_by(self.category)
            if "category" not in fields or (self.part and "part" in fields):
                raise UsageError(f"{self.category!r} is not a class")
            for name, value in fields.items():
                force_setattr(self, name, value)
        least, most = self.factors
        if not 0 <= least <= most <= _LARGEST_FACTOR:
            raise UsageError(
                f"the factor is a number from 0 to {_LARGEST_FACTOR:g}, or [least, most]"
            )
        if self.kernel is not None:
            try:
                pl.Series([""]).str.contains(self.kernel)
            except pl.exceptions.ComputeError:
                raise UsageError(f"{self.kernel!r} is not a regular expression") from None
        of_work = (self.category, self.part, self.layer, self.kernel)
        of_optimizer = self.what == "host" and self.direction == "optimizer"
        if self.what != "work" and (
            any(field is not None for field in of_work) or (self.direction and not of_optimizer)
        ):
            raise UsageError("class, part, direction, layer and kernel select work: leave out what")
        if self.what == "sync" and not self.remove and self.factors != (0, 0):
            raise UsageError("a wait for the device has no factor: use 'no sync'")
        if self.by is not None:
            _check_model(self)
        if self.range is not None and self.what != "host":
            raise UsageError('range selects time of the host: add what = "host"')
        if self.between_layers and (self.what != "host" or self.operator or self.range):
            raise UsageError('between_layers selects time of the host alone: add what = "host"')
        if self.operator is not None and (self.what in ("launch", "data", "sync") or self.range):
            raise UsageError("operator selects work, or time of the host without a range")

    @property
    def factors(self) -> tuple[float, float]:
        """The least and the most of the factor."""
        if self.remove:
            return 0.0, 0.0
        return self.factor if isinstance(self.factor, tuple) else (self.factor, self.factor)


def _check_model(change: Change) -> None:
    kind, _, argument = (change.by or "").partition(":")
    if kind not in _MODELS or (kind in _PLAIN_MODELS) == bool(argument):
        raise UsageError(
            f"{change.by!r} is not a model: use {', '.join(_PLAIN_MODELS)}, gpu:NAME, batch:RATIO, "
            "link:RATIO, ranks:COUNT or recording:FILE"
        )
    if change.what != "work" or change.remove or change.factor != 1.0:
        raise UsageError("with by there is neither factor nor remove, and it is about work")
    if change.recordings and (kind != "batch" or any(r <= 0 for r, _ in change.recordings)):
        raise UsageError("recordings are for by = 'batch:RATIO', with ratios above 0")
    ratio = 1.0
    if kind in _RATIOS:
        try:
            ratio = float(argument)
        except ValueError:
            ratio = math.nan
    if not 0 < ratio <= _LARGEST_FACTOR:
        raise UsageError(f"{argument!r} is not a ratio: use more than 0, to {_LARGEST_FACTOR:g}")
    if kind == "ranks" and not (argument.isdecimal() and 2 <= int(argument) <= _MOST_RANKS):
        raise UsageError(f"{argument!r} is not a number of ranks: use 2 to {_MOST_RANKS:,}")


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes that are made together, and the assumptions of their prediction."""

    name: str
    changes: tuple[Change, ...] = msgspec.field(name="change")
    assumes: tuple[str, ...] = ()


def batch_ratio(scenario: Scenario) -> float:
    """Return how many times as many examples a batch of ``scenario`` has."""
    changes = (change.by or "" for change in scenario.changes)
    return math.prod(float(by.removeprefix("batch:")) for by in changes if by.startswith("batch:"))


NAMED: Final[dict[str, Scenario]] = {
    named.name: named
    for named in (
        Scenario(
            name="data-ready",
            changes=(Change(what="data", remove=True),),
            assumes=("data-ready: no wait for the next batch",),
        ),
        Scenario(
            name="fused-activation",
            changes=tuple(
                Change(category=kind, direction="forward", remove=True)
                for kind in ("bias", "activation")
            ),
            assumes=(
                "fused-activation: bias and activation in the epilogue of the preceding kernel, at "
                "unchanged time",
            ),
        ),
        Scenario(
            name="tensor-cores",
            changes=(Change(by="tensor-cores"),),
            assumes=(
                "tensor-cores: FP32 convolutions and GEMMs in TF32 (FP16 below compute capability "
                "8.0), no added casts",
            ),
        ),
        Scenario(
            name="amp",
            changes=(
                Change(by="amp", outside_loading=True),
                *(
                    Change(category=kind, factor=(0.5, 1.0), implied=True, outside_loading=True)
                    for kind in ("activation", "bias", "normalization", "dropout", "pooling")
                ),
                Change(what="host", operator="*", factor=(1.0, HOST_OF_AUTOCAST), implied=True),
            ),
            assumes=(
                "amp: convolutions and GEMMs in BF16 (FP16 where the device has none), operands "
                "cast at most once each; half to all of the time of pointwise kernels; up to "
                f"{HOST_OF_AUTOCAST:g} times the host's time in operators",
            ),
        ),
        Scenario(
            name="compile",
            changes=(
                *(
                    Change(category=kind, factor=factor, implied=True, outside_loading=True)
                    for kind, factor in (
                        *(("activation", (0.0, 1.0)), ("bias", (0.0, 1.0))),
                        *(("elementwise", (0.3, 1.0)), ("dropout", (0.3, 1.0))),
                        *(("normalization", (0.5, 1.0)), ("softmax", (0.5, 1.0))),
                    )
                ),
                Change(what="host", operator="*", factor=HOST_OF_COMPILED, implied=True),
                Change(
                    what="host",
                    between_layers=True,
                    factor=(0.0, HOST_OF_COMPILED[1]),
                    implied=True,
                ),
            ),
            assumes=(
                "compile: torch.compile: pointwise kernels in the epilogue or in chains, products "
                "and their launches unchanged; "
                f"{HOST_OF_COMPILED[0]:g} to {HOST_OF_COMPILED[1]:g} times the host's time in "
                f"operators, 0 to {HOST_OF_COMPILED[1]:g} times that between those of layers",
            ),
        ),
        Scenario(
            name="folded-norm",
            changes=(Change(category="normalization", remove=True),),
            assumes=("folded-norm: batch normalization in the weights of the layer before it",),
        ),
        Scenario(
            name="pinned",
            changes=(Change(by="pinned"),),
            assumes=(
                "pinned: host memory pinned once, HtoD copies asynchronous (non_blocking=True)",
            ),
        ),
        Scenario(
            name="overlapped-copies",
            changes=tuple(
                Change(category="memcpy", part=direction, beside=True, implied=True)
                for direction in ("HtoD", "DtoH")
            ),
            assumes=(
                "overlapped-copies: HtoD copies, and DtoH copies of 1 MiB and more, on another "
                "stream, during the step; the host does not wait for these",
            ),
        ),
        Scenario(
            name="no-input-gradient",
            changes=(Change(input_gradient=True, remove=True),),
            assumes=("no-input-gradient: dgrad of the network's input unused",),
        ),
        Scenario(
            name="cuda-graphs",
            changes=(Change(what="launch", factor=(0.0, LEFT_BY_GRAPHS), outside_loading=True),
                     Change(what="host", operator="*", factor=(0.0, LEFT_BY_GRAPHS))),
            assumes=(
                "cuda-graphs: the step is one graph; host time in operators and launches at most "
                "10 %, data loading unchanged",
            ),
        ),
        Scenario(
            name="fused-optimizer",
            changes=(Change(direction="optimizer", by="fused-optimizer"),
                     Change(what="host", direction="optimizer", factor=(0.0, LEFT_BY_GRAPHS))),
            assumes=(
                "fused-optimizer: multi-tensor kernels, as fast as the memory moves their bytes; "
                "host time in the optimizer's operators at most 10 %",
            ),
        ),
    )
}  # fmt: skip
"""Scenarios with a name."""


def scenario(text: str) -> Scenario:
    """Return the scenario that ``text`` describes: a name, changes, or the path of a TOML file.

    Raises :class:`~traceana.errors.UsageError`.
    """
    if text.strip() in NAMED:
        return NAMED[text.strip()]
    if text.endswith(".toml"):
        return _file(Path(text))
    assumes: tuple[str, ...] = ()
    changes: list[Change] = []
    for part in text.split(" + "):
        if named := NAMED.get(part.strip()) or _model_scenario(part.strip(), text):
            changes += named.changes
            assumes += named.assumes
        else:
            changes.append(_change(part, text))
            if changes[-1].what == "sync" and _NO_SYNC not in assumes:
                assumes += (_NO_SYNC,)
            if changes[-1] == _NO_LAYOUT:
                changes.append(
                    Change(
                        category="normalization",
                        kernel=_NCHW_NORM,
                        factor=_NHWC_FACTOR,
                        implied=True,
                    )
                )
                assumes += (
                    "no layout: channels_last; cuDNN normalizes NHWC in about half the time",
                )
    return Scenario(name=" ".join(text.split()), changes=tuple(changes), assumes=assumes)


_NO_SYNC: Final = "sync: the host needs no result of the work that it waited for"
_NO_LAYOUT: Final = Change(category="layout", remove=True)
_NCHW_NORM: Final = r"cudnn::bn_\w+_1C11"
"""cuDNN's kernels of batch normalization in NCHW. In NHWC they took 0.47, 0.58 and 0.61 times as
long: EfficientNet-B0, ResNet-50 with batches of 128 and of 32, on an H200 with cuDNN 9.19."""
_NHWC_FACTOR: Final = (0.47, 0.61)
_ASSUMED: Final = {
    "gpu": "kernel times scaled by the peaks; host, links and choice of kernels unchanged",
    "batch": "work scaled with the batch, except the optimizer; host unchanged",
    "link": "latency of collectives unchanged",
    "ranks": "same work per rank; added ranks behave like the recorded ones",
    "recording": "convolution times of the other recording",
    "workers": "batches prepared in parallel to the step, each at the recorded host time",
}


def _model_scenario(text: str, whole: str) -> Scenario | None:
    """Return the scenario of a model with an argument, as in ``gpu:H100``; None if it is none."""
    kind, _, argument = text.partition(":")
    if kind not in _ASSUMED or not argument:
        return None
    assumes = (f"{text}: {_ASSUMED[kind]}",)
    if kind != "workers":
        try:
            return Scenario(name=text, changes=(Change(by=text),), assumes=assumes)
        except UsageError as error:
            raise UsageError(f"{whole!r}: {error}") from None
    if not (argument.isdecimal() and 1 <= int(argument) <= _MOST_WORKERS):
        raise UsageError(
            f"{argument!r} in {whole!r} is not a number of workers: use 1 to {_MOST_WORKERS:,}"
        )
    change = Change(what="data", factor=1 / int(argument), beside=True)
    return Scenario(name=text, changes=(change,), assumes=assumes)


def _change(text: str, whole: str) -> Change:
    parsed = _CHANGE.fullmatch(text)
    if parsed is None or (parsed["no"] is None) == (parsed["factor"] is None):
        raise UsageError(
            f"{whole!r} is not a scenario{suggested(text.strip(), NAMED)}: use 'CLASS x FACTOR', "
            f"'layer:PATTERN x FACTOR', 'host x FACTOR', 'no CLASS', a TOML file, or "
            f"{_words_with_or(NAMED)}"
        )
    change = Change(remove=True)
    if parsed["factor"] is not None:
        try:
            ends = [float(number) for number in parsed["factor"].split("..")]
        except ValueError:
            ends = []
        if not 1 <= len(ends) <= 2 or not all(0 <= end <= _LARGEST_FACTOR for end in ends):
            raise UsageError(
                f"{parsed['factor']!r} in {whole!r} is not a factor: use a number from 0 to "
                f"{_LARGEST_FACTOR:g}, or two as in 0.5..0.8"
            )
        change = Change(factor=ends[0] if len(ends) == 1 else (min(ends), max(ends)))
    what, (kind, _, pattern) = parsed["what"], parsed["what"].partition(":")
    try:
        if kind == "range" and pattern:
            return replace(change, what="host", range=pattern)
        if kind in _SELECTORS and pattern:
            return replace(change, **{kind: pattern})
        word, _, part = what.partition("/")
        if part:
            return replace(change, category=word, part=part)
        return replace(change, **_selected_by(what))
    except UsageError as error:
        raise UsageError(f"{whole!r}: {error}") from None


def _file(path: Path) -> Scenario:
    try:
        table = rtoml.loads(path.read_text("utf-8"))
        loaded = msgspec.convert({"name": path.stem, **table}, Scenario)
        return replace(
            loaded, assumes=tuple(f"{loaded.name}: {assumption}" for assumption in loaded.assumes)
        )
    except OSError as error:
        raise UsageError(f"cannot read the scenario {path}: {error.strerror or error}") from error
    except (
        UnicodeDecodeError,
        rtoml.TomlParsingError,
        msgspec.ValidationError,
        UsageError,
    ) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not a scenario: {reason}; see docs/whatif.md") from error


def _words_with_or(names: Any) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"
