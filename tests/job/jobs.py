"""Jobs of several ranks with known figures, as the Kineto files of their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.readers.kineto.writing import annotation, call, kernel, write

EPOCH_NS = 1_700_000_000 * 10**9
FIRST_NS = 1_000_000
"""When the first step begins: events at 0 count as without a time."""
TRANSFER_NS = 400_000
"""How long the all-reduce of a step takes from the arrival of the last rank on."""


@dataclass(frozen=True)
class Job:
    """A job whose ranks compute in each step and then reduce their gradients together.

    ``compute_ns`` has a row per rank and a column per step. ``clock_ns`` is how far the clock of
    each rank is ahead. ``kernels`` is the number of computing kernels of a step.
    """

    compute_ns: np.ndarray[Any, Any]
    clock_ns: dict[int, int] = field(default_factory=dict)
    kernels: int = 2

    def write(self, folder: Path, *, compress: bool = False) -> list[Path]:
        """Write a file a rank into ``folder``; returns them in order of rank."""
        ranks, steps = self.compute_ns.shape
        events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        begun = FIRST_NS
        for step in range(steps):
            arrived = begun + self.compute_ns[:, step]
            end = int(arrived.max()) + TRANSFER_NS
            for rank in range(ranks):
                ahead = self.clock_ns.get(rank, 0)
                own = self._step(step, begun + ahead, int(arrived[rank]) + ahead, end + ahead)
                events[rank] += own
            begun = end + 1_000
        folder.mkdir(parents=True, exist_ok=True)
        return [
            write(
                folder / f"rank{rank}.json{'.gz' if compress else ''}",
                events[rank],
                compress=compress,
                baseTimeNanoseconds=EPOCH_NS,
                distributedInfo={"rank": rank, "world_size": ranks, "backend": "nccl"},
            )
            for rank in range(ranks)
        ]

    def _step(self, step: int, begin: int, arrival: int, end: int) -> list[dict[str, Any]]:
        events = [annotation(f"ProfilerStep#{step}", _us(begin), _us(end - begin))]
        at, number = begin, 100 * step
        for each in range(self.kernels):
            until = begin + (arrival - begin) * (each + 1) // self.kernels
            events.append(call("cudaLaunchKernel", _us(begin + each), 0.001, number + each))
            events.append(
                kernel(f"gemm_{each}", _us(at), _us(until - at), correlation=number + each)
            )
            at = until
        launch = number + self.kernels
        events.append(call("cudaLaunchKernel", _us(begin + self.kernels), 0.001, launch))
        reduce = {
            "Collective name": "allreduce",
            "In msg nelems": 1000,
            "dtype": "Float",
            "Group size": len(self.compute_ns),
        }
        events.append(
            kernel(
                ALL_REDUCE,
                _us(arrival),
                _us(end - arrival),
                correlation=launch,
                **reduce,
            )
        )
        return events


@dataclass(frozen=True)
class Turns:
    """A job whose ranks compute and communicate in turn, several times a step.

    ``compute_ns`` has axes of ranks, steps and turns, ``messages`` the arguments of the collective
    of each turn, over those of an all-reduce of 4 kB. ``of_rank`` has arguments by rank, step and
    turn over these; None where the rank lacks the collective. ``clock_ns`` is how far the clock of
    each rank is ahead.
    """

    compute_ns: np.ndarray[Any, Any]
    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_rank: Mapping[tuple[int, int, int], dict[str, Any] | None] = field(default_factory=dict)
    clock_ns: dict[int, int] = field(default_factory=dict)

    def step_ns(self) -> np.ndarray[Any, Any]:
        """Return the time of each step."""
        together: np.ndarray[Any, Any] = (self.compute_ns.max(axis=0) + TRANSFER_NS).sum(axis=1)
        return together

    def write(self, folder: Path) -> list[Path]:
        """Write a file a rank into ``folder``; returns them in order of rank."""
        ranks, steps, turns = self.compute_ns.shape
        events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        begun = FIRST_NS
        for step in range(steps):
            length = int(self.step_ns()[step])
            for rank in range(ranks):
                ahead = begun + self.clock_ns.get(rank, 0)
                events[rank].append(annotation(f"ProfilerStep#{step}", _us(ahead), _us(length)))
            for turn in range(turns):
                end = begun + int(self.compute_ns[:, step, turn].max()) + TRANSFER_NS
                for rank in range(ranks):
                    ahead = self.clock_ns.get(rank, 0)
                    arrival = begun + int(self.compute_ns[rank, step, turn])
                    number = 100 * step + 2 * turn
                    message = {
                        **{"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float"},
                        **{"Group size": ranks, "Process Group Name": "0"},
                        **{"Process Group Ranks": str(list(range(ranks)))},
                        **{"Process Group Description": "default_pg", "Seq": turns * step + turn},
                        **self.messages.get(turn, {}),
                    }
                    work = [("gemm", begun, arrival, dict[str, Any]())]
                    own = self.of_rank.get((rank, step, turn), {})
                    if own is not None:
                        work.append((_kernel_of(message | own), arrival, end, message | own))
                    for each, (name, start, until, args) in enumerate(work, number):
                        launched = _us(begun + ahead + each - number)
                        events[rank] += [
                            call("cudaLaunchKernel", launched, 0.001, each),
                            kernel(name, _us(start + ahead), _us(until - start), correlation=each,
                                   **args),
                        ]  # fmt: skip
                begun = end
        folder.mkdir(parents=True, exist_ok=True)
        return [
            write(
                folder / f"rank{rank}.json",
                events[rank],
                baseTimeNanoseconds=EPOCH_NS,
                distributedInfo={"rank": rank, "world_size": ranks, "backend": "nccl"},
            )
            for rank in range(ranks)
        ]


def _kernel_of(message: dict[str, Any]) -> str:
    """Return the name of NCCL's kernel for the message."""
    if message["Collective name"] == "allreduce":
        return ALL_REDUCE
    return {
        "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "all_to_allv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    }[message["Collective name"]]


TENSOR_NS, DATA_NS = 100_000, 300_000
"""How long the all-reduces of :class:`Grid` take from the arrival of the last rank on."""
TENSOR_BYTES, DATA_BYTES = 2_000, 8_000


@dataclass(frozen=True)
class Grid:
    """A job whose ranks compute in each step, then reduce in groups of ``tensor`` neighbours, then
    across these groups; no collective is of all ranks.

    All ranks give their two groups the same names. With ``numbered`` collectives have sequence
    numbers, with ``listed`` the groups' ranks are recorded.
    """

    compute_ns: np.ndarray[Any, Any]
    tensor: int = 2
    numbered: bool = True
    listed: bool = True
    clock_ns: dict[int, int] = field(default_factory=dict)

    def groups(self, rank: int) -> tuple[list[int], list[int]]:
        """Return the ranks of the two groups of ``rank``."""
        ranks, first = len(self.compute_ns), rank // self.tensor * self.tensor
        return (
            list(range(first, first + self.tensor)),
            list(range(rank % self.tensor, ranks, self.tensor)),
        )

    def times(self) -> list[list[tuple[int, int, int, int]]]:
        """Return, by rank and step, when it begins, when its two collectives do, and its end."""
        ranks, steps = self.compute_ns.shape
        begun = [FIRST_NS] * ranks
        found: list[list[tuple[int, int, int, int]]] = [[] for _ in range(ranks)]
        for step in range(steps):
            first = [begun[rank] + int(self.compute_ns[rank, step]) for rank in range(ranks)]
            second = [
                max(first[one] for one in self.groups(rank)[0]) + TENSOR_NS for rank in range(ranks)
            ]
            end = [
                max(second[one] for one in self.groups(rank)[1]) + DATA_NS for rank in range(ranks)
            ]
            for rank in range(ranks):
                found[rank].append((begun[rank], first[rank], second[rank], end[rank]))
            begun = [one + 1_000 for one in end]
        return found

    def write(self, folder: Path) -> list[Path]:
        """Write a file a rank into ``folder``; returns them in order of rank."""
        folder.mkdir(parents=True, exist_ok=True)
        return [
            write(
                folder / f"rank{rank}.json",
                [
                    event
                    for step, each in enumerate(times)
                    for event in self._step(rank, step, each)
                ],
                baseTimeNanoseconds=EPOCH_NS,
                distributedInfo={"rank": rank, "world_size": len(self.compute_ns)},
            )
            for rank, times in enumerate(self.times())
        ]

    def _step(self, rank: int, step: int, times: tuple[int, int, int, int]) -> list[dict[str, Any]]:
        begin, first, second, end = (one + self.clock_ns.get(rank, 0) for one in times)
        tensor, data = self.groups(rank)
        work: list[tuple[str, int, int, dict[str, Any]]] = [
            ("gemm", begin, first, {}),
            (ALL_REDUCE, first, second, self._message("1", "mesh_tp", tensor, TENSOR_BYTES, step)),
            (ALL_REDUCE, second, end, self._message("2", "mesh_dp", data, DATA_BYTES, step)),
        ]
        events = [annotation(f"ProfilerStep#{step}", _us(begin), _us(end - begin))]
        for number, (name, start, until, args) in enumerate(work, 10 * step):
            events.append(call("cudaLaunchKernel", _us(begin + number % 10), 0.001, number))
            events.append(kernel(name, _us(start), _us(until - start), correlation=number, **args))
        return events

    def _message(
        self, name: str, description: str, ranks: list[int], size: int, step: int
    ) -> dict[str, Any]:
        group = {"Process Group Name": name, "Process Group Description": description}
        return {
            **{"Collective name": "allreduce", "In msg nelems": size // 4, "dtype": "Float"},
            **{"Group size": len(ranks), **group},
            **({"Process Group Ranks": str(ranks)} if self.listed else {}),
            **({"Seq": step + 7} if self.numbered else {}),
        }


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _us(ns: int) -> float:
    return ns / 1000


def even(ranks: int, steps: int, seed: int, *, spread: float = 0.01) -> np.ndarray[Any, Any]:
    """Return compute times of 10 ms, which vary normally by ``spread``, in whole microseconds."""
    noise = np.random.default_rng(seed).normal(1, spread, (ranks, steps))
    return np.round(10_000 * noise).astype(np.int64) * 1000
