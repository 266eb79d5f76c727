"""Training jobs with known figures, as tables of their operations.

The schedule is 1F1B: a stage runs as many forward passes as stages follow, then a forward and a
backward pass in turn. Ranks and steps are axes of arrays; operations of a rank run as soon as their
dependencies allow, so that the recorded times are in closed form those of the replay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]

FORWARD, BACKWARD = 0.010, 0.020
"""Seconds of a pass without noise."""
TRANSFERS = {
    "forward-send": 0.0004,
    "backward-send": 0.0004,
    "params-all-gather": 0.003,
    "grads-reduce-scatter": 0.004,
    "embedding-grads-all-reduce": 0.002,
    "optimizer-clip-main-grad": 0.0005,
}
"""Seconds from the arrival of the last rank on."""


@dataclass
class Job:
    """A job of ``dp`` data-parallel ranks by ``pp`` stages.

    ``passes`` has the seconds of each pass: direction, data-parallel rank, stage, step,
    micro-batch. ``transfers`` has those of each collective by type: data-parallel rank, stage,
    step. ``ends`` are the recorded ends of all operations, ``rows`` the table.
    """

    dp: int = 4
    pp: int = 2
    steps: int = 10
    micro_batches: int = 4
    seed: int = 0
    noise: float = 0.01
    passes: Floats = field(init=False)
    transfers: dict[str, Floats] = field(init=False)
    optimizer: Floats = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        shape = (2, self.dp, self.pp, self.steps, self.micro_batches)
        typical = np.array([FORWARD, BACKWARD])[:, None, None, None, None]
        self.passes = typical * np.exp(self.noise * generator.standard_normal(shape))
        self.transfers = {
            name: time * np.exp(self.noise * np.abs(generator.standard_normal(shape[1:4])))
            for name, time in TRANSFERS.items()
        }
        self.optimizer = 0.005 * np.exp(self.noise * generator.standard_normal(shape[1:4]))

    def schedule(self, stage: int) -> list[tuple[int, int]]:
        """Return the passes of a stage in order: direction and micro-batch."""
        warm_up = min(self.pp - stage - 1, self.micro_batches)
        order = [(0, number) for number in range(warm_up)]
        for number in range(self.micro_batches - warm_up):
            order += [(0, warm_up + number), (1, number)]
        return order + [
            (1, number) for number in range(self.micro_batches - warm_up, self.micro_batches)
        ]

    def operations(self) -> pl.DataFrame:
        """Return the table: a row for each operation, times in seconds from the begin of a step."""
        begins: dict[tuple[str, int, int], Floats] = {}
        ends: dict[tuple[str, int, int], Floats] = {}
        zero = np.zeros((self.dp, self.steps))
        names = ("forward", "backward")
        last_pass = [zero] * self.pp

        def collective(name: str, sequence: int, stages: list[int], *, data: bool) -> None:
            arrived = np.maximum.reduce([begins[name, sequence, stage] for stage in stages])
            if data:
                arrived = np.broadcast_to(arrived.max(axis=0), arrived.shape)
            for stage in stages:
                time = self.transfers[name][:, stage]
                ends[name, sequence, stage] = arrived + time

        if self.dp > 1:
            for stage in range(self.pp):
                begins["params-all-gather", 0, stage] = zero
                collective("params-all-gather", 0, [stage], data=True)
        orders = [self.schedule(stage) for stage in range(self.pp)]
        place = [0] * self.pp
        while any(place[stage] < len(orders[stage]) for stage in range(self.pp)):
            advanced = False
            for stage in range(self.pp):
                if place[stage] == len(orders[stage]):
                    continue
                direction, number = orders[stage][place[stage]]
                before = stage - 1 if direction == 0 else stage + 1
                name = names[direction]
                ready = last_pass[stage]
                if 0 <= before < self.pp:
                    sent = (f"{name}-compute", number, before)
                    if sent not in ends:
                        continue
                    send, receive = f"{name}-send", f"{name}-recv"
                    posted = ends.get((f"{name}-compute", number - 1, stage), zero)
                    if direction == 1 and number == 0:
                        first = orders[stage].index((1, 0))
                        posted = zero
                        if first >= 2:
                            posted = ends["forward-compute", orders[stage][first - 2][1], stage]
                    posted = np.maximum(posted, ends.get((receive, number - 1, stage), zero))
                    sends = np.maximum(ends[sent], ends.get((send, number - 1, before), zero))
                    if direction == 1 and number == 0 and before < self.pp:
                        first = orders[before].index((1, 0))
                        if first >= 2:
                            held = ends["forward-compute", orders[before][first - 2][1], before]
                            sends = np.maximum(sends, held)
                    begins[send, number, before], begins[receive, number, stage] = sends, posted
                    time = self.transfers[send][:, before]
                    end = np.maximum(sends, posted) + time
                    ends[send, number, before] = ends[receive, number, stage] = end
                    ready = np.maximum(ready, end)
                if place[stage] == 0 and self.dp > 1:
                    ready = np.maximum(ready, ends["params-all-gather", 0, stage])
                key = (f"{name}-compute", number, stage)
                begins[key] = ready
                ends[key] = last_pass[stage] = ready + self.passes[direction, :, stage, :, number]
                place[stage] += 1
                advanced = True
            assert advanced
        if self.pp > 1:
            for stage in (0, self.pp - 1):
                begins["embedding-grads-all-reduce", 0, stage] = last_pass[stage]
            collective("embedding-grads-all-reduce", 0, [0, self.pp - 1], data=False)
            for stage in (0, self.pp - 1):
                last_pass[stage] = ends["embedding-grads-all-reduce", 0, stage]
        for stage in range(self.pp):
            if self.dp > 1:
                begins["grads-reduce-scatter", 0, stage] = last_pass[stage]
                collective("grads-reduce-scatter", 0, [stage], data=True)
                last_pass[stage] = ends["grads-reduce-scatter", 0, stage]
            begins["optimizer-clip-main-grad", 0, stage] = last_pass[stage]
        collective("optimizer-clip-main-grad", 0, list(range(self.pp)), data=True)
        for stage in range(self.pp):
            begins["optimizer", 0, stage] = ends["optimizer-clip-main-grad", 0, stage]
            ends["optimizer", 0, stage] = begins["optimizer", 0, stage] + self.optimizer[:, stage]
        dp_rank, step = np.indices((self.dp, self.steps)).reshape(2, -1)
        frames = [
            pl.DataFrame(
                {
                    "dp_rank": dp_rank,
                    "stage": stage,
                    "rank": stage * self.dp + dp_rank,
                    "step": 3 * step + 5,
                    "optype": name,
                    "start_ts": begins[name, sequence, stage].ravel(),
                    "duration": (end - begins[name, sequence, stage]).ravel(),
                    "seq_id": sequence,
                    "mc": 0 if "compute" in name or "params" in name or "grads-r" in name else -1,
                    "mb_id": sequence if "compute" in name else -1,
                }
            )
            for (name, sequence, stage), end in ends.items()
        ]
        return pl.concat(frames)

    def frame(self) -> pl.DataFrame:
        """Return the operations as a rank's summary has them, with ``rank``."""
        table = self.operations()
        name = pl.col("optype")
        number = pl.col("mc", "mb_id")
        return table.with_columns(
            pl.when(number >= 0).then(number).name.keep(),
            pl.when(name.is_in([*TRANSFERS]) | name.str.contains("-recv$"))
            .then(pl.lit("x"))
            .alias("collective"),
            *(
                (pl.col(column) * 1e9).round().cast(pl.Int64).alias(nanoseconds)
                for column, nanoseconds in (("start_ts", "start_ns"), ("duration", "time_ns"))
            ),
        ).select(
            "rank",
            name.alias("name"),
            *("collective", "stage", "dp_rank", "step", pl.col("seq_id").alias("sequence")),
            pl.col("mb_id").alias("micro_batch"),
            pl.col("mc").alias("model_chunk"),
            *("start_ns", "time_ns"),
        )

    def write(self, path: Path) -> Path:
        """Write the table as Parquet."""
        self.operations().write_parquet(path)
        return path

    def write_timeline(self, path: Path) -> Path:
        """Write the Chrome trace of the table, with whole operations."""
        table = self.operations()
        length = float((table["start_ts"] + table["duration"]).max())  # type: ignore[arg-type]
        kinds = {"compute": 0, "recv": 1, "send": 1}
        threads: dict[tuple[int, int], str] = {}
        events: list[dict[str, Any]] = []
        for row in table.iter_rows(named=True):
            kind = kinds.get(row["optype"].rpartition("-")[2], 3)
            thread = row["rank"] * 4 + kind
            label = ("compute", "pp-comm", "tp-comm", "dp-comm")[kind]
            threads[row["dp_rank"], thread] = f"PP rank {row['stage']}, TP rank 0, {label}"
            start = row["start_ts"] + row["step"] * length
            events.append(
                {
                    **{"name": row["optype"], "cat": row["optype"], "ph": "X"},
                    **{"pid": row["dp_rank"], "tid": thread},
                    **{"ts": start * 1e6, "dur": row["duration"] * 1e6},
                    "args": {
                        **{"step": row["step"], "model_chunk": row["mc"]},
                        **{"mb_id": row["mb_id"], "seq_id": row["seq_id"]},
                    },
                }
            )
        for rank in range(self.dp * self.pp):
            for kind, label in enumerate(("compute", "pp-comm", "tp-comm", "dp-comm")):
                key = (rank % self.dp, rank * 4 + kind)
                threads.setdefault(key, f"PP rank {rank // self.dp}, TP rank 0, {label}")
        for (process, thread), name in threads.items():
            args = {"name": name}
            ids = {"pid": process, "tid": thread}
            events.append({"name": "thread_name", "ph": "M", **ids, "args": args})
        path.write_text(json.dumps({"traceEvents": events}))
        return path
