"""Which picture each study has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from traceana.report.plots import of_algorithms, of_batch, of_items, of_ratio, of_scaling
from traceana.report.plots.picture import Picture
from traceana.study.model import Study
from traceana.study.names import Name

_PICTURES: Final[Mapping[Name, Callable[[Study], Picture]]] = {
    Name.BATCH: of_batch.picture,
    Name.RATIO: of_ratio.picture,
    Name.SCALING: of_scaling.picture,
    Name.ALGORITHMS: of_algorithms.by_batch,
    Name.LAYERWISE: of_algorithms.by_layer,
    **dict.fromkeys(
        (Name.FRAMEWORKS, Name.EPILOGUES, Name.SGEMM, Name.TRANSFERS), of_items.picture
    ),
}


def picture_of(study: Study) -> Picture:
    """Return the picture of ``study``, which has rows."""
    return _PICTURES[study.name](study)
