"""One of the runs that are compared, and what it is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceana.analyze.costs.pairing import with_names_of
from traceana.compare.align import Side, side
from traceana.compare.pairs_file import Pairs
from traceana.compare.samples import Sample, sample

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace

_SUFFIXES: Final = frozenset(
    (
        *(".gz", ".zst", ".xz", ".json", ".trace", ".pt", ".pb", ".xplane", ".sqlite", ".sql"),
        *(".nsys-rep", ".qdrep", ".qdstrm", ".nvvp", ".nvprof", ".csv", ".tsv", ".parquet"),
    )
)


class Run:
    """A labelled trace with the layer manifest of its model, if there is one.

    What several tables need of it is computed once.
    """

    def __init__(
        self,
        label: str,
        trace: Trace,
        model: Manifest | None = None,
        batch: int | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        """Name ``trace``; the labels of runs that are compared have to be distinct.

        ``batch`` is the number of images in a step, where it is known beside the trace. ``pairs``
        forces layers of the first of the runs that are compared on layers of this one.
        """
        self.label = label
        self.trace = with_names_of(trace, model)
        self.model = model
        self.pairs = pairs
        self._batch = batch

    @cached_property
    def measured(self) -> Sample:
        """The measured steps; ``marked`` is False, and it is :attr:`whole`, where none is."""
        return sample(self.trace)

    @cached_property
    def whole(self) -> Sample:
        """All of the recording, taken for one step."""
        return sample(self.trace, whole=True) if self.measured.marked else self.measured

    @cached_property
    def side(self) -> Side:
        """The layers."""
        return side(self.trace, self.model)

    @property
    def batch(self) -> int | None:
        """The images in a step: as was told, else by the shapes of the layers' inputs."""
        return self._batch or self.side.batch


def labels(paths: Sequence[Path]) -> list[str]:
    """Return distinct short names of runs that are in ``paths``.

    They are the names of the files or folders without the suffixes of trace formats. Where two
    are alike, all are called after the parts of their paths in which they differ. A path that is
    there twice is numbered.
    """
    stems = [_stem(path) for path in paths]
    told = stems if len(set(stems)) == len(stems) else _differing([p.absolute() for p in paths])
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in told:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _differing(paths: Sequence[Path]) -> list[str]:
    """Return the paths without the parts that all of them begin or end with."""
    parts = [[*path.parts[:-1], _stem(path)] for path in paths]
    shortest = min(map(len, parts)) - 1
    first = next((at for at in range(shortest) if len({p[at] for p in parts}) > 1), shortest)
    room = min(len(p) for p in parts) - first - 1
    last = next((at for at in range(room) if len({p[-1 - at] for p in parts}) > 1), room)
    return ["/".join(p[first : len(p) - last]) for p in parts]


def _stem(path: Path) -> str:
    name = path.name
    while (suffix := Path(name).suffix) in _SUFFIXES and name != suffix:
        name = name.removesuffix(suffix)
    return name or str(path)
