"""The devices of a run, of the agents that rocprofv3 lists in ``agent_info``."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from traceana.ingest.cupti import devices_of_work, fact
from traceana.ingest.table_source import as_int

_GPU: Final = "GPU"
_BY_TYPE: Final = r"^GPU"


def devices(agents: list[dict[str, Any]], printed: pl.Series, used: pl.Series) -> pl.DataFrame:
    """Return the devices of the activities, ``used``, as far as ``agents`` describe them.

    ``printed`` are the texts of the activities' agents. ``Agent 2`` is the agent's number among
    those of the process, or in older versions that of its node; ``GPU 1`` is its number among GPUs
    (``--agent-index``).
    """
    listed = [agent for agent in agents if agent.get("agent_type") == _GPU]
    by_type = printed.str.contains(_BY_TYPE).any()
    logical = {as_int(agent.get("logical_node")) for agent in listed}
    by_node = not {*used.drop_nulls()} <= logical
    key = "node" if by_node else "logical_node"
    described = [
        device(number if by_type else as_int(agent.get(key)), agent)
        for number, agent in enumerate(listed)
    ]
    return of_work(described, used)


def of_work(described: list[dict[str, Any]], used: pl.Series) -> pl.DataFrame:
    """Return the devices of the activities, ``used``; those not ``described`` are AMD's too."""
    return devices_of_work(described, used).with_columns(pl.lit("AMD").alias("vendor"))


def device(number: int | None, agent: dict[str, Any]) -> dict[str, Any]:
    """Return the row of ``devices`` of ``agent``."""
    version = as_int(agent.get("gfx_version")) or 0
    clock = fact(agent, "clock_khz", "clock_mhz")
    texts = (agent.get(key) for key in ("product", "model", "gfx_name"))
    return {
        "device": number,
        "name": next((text for text in texts if text), None),
        "vendor": "AMD",
        # 90402 is gfx942, whose version traces give as 9.4.
        "compute_capability": f"{version // 10000}.{version // 100 % 100}" if version > 0 else None,
        "multiprocessors": fact(agent, "multiprocessors", "compute_units"),
        "clock_khz": None if clock is None else clock * 1000,
        "memory_bytes": fact(agent, "memory_bytes", "memory_bytes"),
        "warp_size": fact(agent, "warp_size", "warp_size"),
    }
