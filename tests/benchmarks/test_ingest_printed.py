"""The benchmark of printed traces writes the same kernels in three formats."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import traceana
from benchmarks.ingest_printed import kernels, write


def test_the_three_files_have_the_same_kernels(tmp_path: Path) -> None:
    paths = write(tmp_path, 0.1)
    made = list(kernels(traceana.open(paths["nvvp"]).tables.activities.height))
    assert len(made) > 400
    for kind, path in paths.items():
        trace = traceana.open(path)
        work = trace.tables.activities.join(
            trace.tables.names.with_row_index("name_id").select("name_id", "name"), on="name_id"
        ).sort("correlation")
        assert work["correlation"].to_list() == [one.correlation for one in made]
        assert work["name"].n_unique() == 200
        assert work["grid_x"].to_list() == [one.grid for one in made]
        # Text has five digits, CSV and the database whole nanoseconds.
        made_ns = pl.Series([one.duration for one in made])
        assert (work["duration"] - made_ns).abs().le(5 if kind == "txt" else 0).all()
        if kind != "txt":
            assert work["start"].to_list() == [one.start - made[0].start for one in made]
