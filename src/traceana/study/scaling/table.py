"""The study of speed-up by number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceana.result import Result
from traceana.study.conditions import conditions
from traceana.study.labels import labels
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.recorded import Recorded
from traceana.study.scaling.communication import Communication
from traceana.study.scaling.models import with_models
from traceana.study.scaling.series import in_series

MODELS: Final = "models"


def scaling_study(
    runs: Sequence[Recorded], communications: Sequence[Communication | None]
) -> Study:
    """Return how speed grows with the number of devices; ``communications`` are those of ``runs``.

    Runs are of one series when their network, their framework with its options, and their batch,
    of all devices or of each, are the same. The section ``models`` has those of
    :mod:`traceana.study.scaling.fit` for each series.
    """
    names = labels(runs, lambda run: (run.network, run.batch, run.devices))
    frame, models, refusals = with_models(in_series(runs, names, communications))
    notes = []
    if frame.is_empty():
        notes.append("no run tells its batch")
    if frame["communication_ns"].is_not_null().any():
        notes.append(
            "communication: the time of a step in which a rank is in a collective, waiting for "
            "the others included"
        )
    if (models["gather_ns"] < 0).any():
        notes.append("a negative time of gathering: steps got faster than the model allows")
    if (models["compute_ns"] < 0).any():
        notes.append("a negative time of computing: more devices only cost time here")
    return Study(
        Name.SCALING,
        "Speed-up by number of devices",
        conditions(runs),
        Result(frame, {}, tuple(notes)),
        {MODELS: Result(models)} if models.height else {},
        tuple(refusals),
    )
