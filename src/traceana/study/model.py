"""What a study gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from traceana.result import Result
from traceana.study.names import Name
from traceana.study.published import exhibits, rows


@dataclass(frozen=True, slots=True)
class Study:
    """One study: ``title`` says what was measured, ``on`` on what, a line each.

    ``result`` has the rows, ``sections`` further tables by their names. ``missing`` says what to
    record where the runs lack something.
    """

    name: Name
    title: str
    on: tuple[str, ...]
    result: Result
    sections: Mapping[str, Result] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def with_published(study: Study) -> Study:
    """Return ``study`` with the printed figures of its paper behind its own rows.

    ``source`` says which row is whose: null for the runs, else where it was printed. The notes say
    on what it was measured, and what the paper found.
    """
    own = study.result.frame.with_columns(pl.lit(None, pl.String).alias("source"))
    printed = rows(study.name, own.schema)
    told = [sentence for one in exhibits(study.name) for sentence in one.sentences]
    result = replace(
        study.result, frame=pl.concat([own, printed]), notes=(*study.result.notes, *told)
    )
    return replace(study, result=result)
