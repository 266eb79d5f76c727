"""From the folders that a user names to a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traceana.cli.opening import open_trace
from traceana.cli.options import Reading
from traceana.study.names import Name

if TYPE_CHECKING:
    from traceana.runs import RecordedRun
    from traceana.study.model import Study
    from traceana.study.recorded import Recorded
    from traceana.study.scaling import Communication


def studied(name: Name, folders: Sequence[Path]) -> Study:
    """Return the study ``name`` of the runs in ``folders``.

    Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.runs import find_runs
    from traceana.study.batch import batch_study
    from traceana.study.ratio import ratio_study
    from traceana.study.scaling import scaling_study

    found = find_runs(folders)
    runs = [_recorded(run) for run in found]
    match name:
        case Name.BATCH:
            return batch_study(runs)
        case Name.RATIO:
            return ratio_study(runs)
        case Name.SCALING:
            told = [_communication(run, one) for run, one in zip(found, runs, strict=True)]
            return scaling_study(runs, told)
        case _:
            raise NotImplementedError


def _recorded(run: RecordedRun) -> Recorded:
    from traceana.describe import read
    from traceana.study.recorded import recorded

    layers = run.layers
    return recorded(
        str(run.folder),
        run.run,
        run.environment(),
        run.timing(),
        None if layers is None else read(layers),
    )


def _communication(run: RecordedRun, known: Recorded) -> Communication | None:
    """Return what the ranks of a run said to each other; None of one rank or without a trace."""
    from traceana.analyze.communication import communication
    from traceana.study.scaling import communicated

    if known.devices == 1 or known.failure or not run.run.traces:
        return None
    return communicated(communication(open_trace([run.folder], Reading())).frame)
