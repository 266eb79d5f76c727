"""The tables of rocprofv3's JSON (``--output-format json``), with the cells of its CSV.

The schema is that of ROCprofiler-SDK's documentation ("Using rocprofv3"): a tool entry for each
process, with ``agents``, ``kernel_symbols``, ``strings`` that name kinds and operations by index,
``buffer_records`` (dispatches, copies, calls, markers) and ``callback_records`` (counters).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import polars as pl

from traceana.files import UNDECODABLE
from traceana.readers.rocprof.csv_tables import CsvTables, Kind, Table

_CALLS: Final = ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api", "marker_api")
_AGENT_TYPES: Final[Mapping[int | None, str]] = {1: "CPU", 2: "GPU"}
_Record = Mapping[str, Any]


def json_tables(content: bytes) -> CsvTables:
    """Return the tables in ``content``; records that are not objects are malformed.

    A file that is not valid JSON, such as one that is cut, has no tables.
    """
    try:
        document = msgspec.json.decode(content)
    except UNDECODABLE:
        return CsvTables([], 0, 0, content.count(b"\0"), cut=True)
    rows: dict[Kind, list[dict[str, Any]]] = {}
    malformed = 0
    for tool in _list(_object(document).get("rocprofiler-sdk-tool")):
        for kind, row in _rows(_object(tool)):
            if row is None:
                malformed += 1
            else:
                rows.setdefault(kind, []).append(row)
    tables = []
    for kind, found in rows.items():
        # As in CSV every cell is a text.
        columns = {
            name: [None if row[name] is None else str(row[name]) for row in found]
            for name in found[0]
        }
        cells = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
        tables.append(Table(kind, "rocprofv3", cells))
    return CsvTables(tables, malformed, 0, 0, cut=False)


def _rows(tool: _Record) -> Iterator[tuple[Kind, dict[str, Any] | None]]:
    """Yield the rows of one process, None for a record that is not an object."""
    process = _object(tool.get("metadata")).get("pid")
    nodes: dict[int | None, str] = {}
    for agent in map(_object, _list(tool.get("agents"))):
        node = agent.get("node_id")
        nodes[_handle(agent.get("id"))] = f"Agent {node}"
        yield Kind.AGENTS, _agent(agent, process)
    named = map(_object, _list(tool.get("kernel_symbols")))
    symbols = {_handle(symbol.get("kernel_id")): symbol for symbol in named}
    strings = _object(tool.get("strings"))
    kinds = [_object(kind) for kind in _list(strings.get("buffer_records"))]
    texts = map(_object, _list(strings.get("marker_api")))
    messages = {_handle(one.get("key")): one.get("value") for one in texts}
    counters = {
        _handle(one.get("id")): one.get("name") for one in map(_object, _list(tool.get("counters")))
    }
    records = _object(tool.get("buffer_records"))
    for record, row in _timed(records, "kernel_dispatch", process):
        if row is not None:
            row |= _dispatch(_object(record.get("dispatch_info")), nodes, symbols)
        yield Kind.KERNELS, row
    for record, row in _timed(records, "memory_copy", process):
        if row is not None:
            _, operation = _named(record, kinds)
            row["direction"] = operation
            row["source"] = nodes.get(_handle(record.get("src_agent_id")))
            row["destination"] = nodes.get(_handle(record.get("dst_agent_id")))
            row["bytes"] = record.get("bytes")
        yield Kind.COPIES, row
    for api in _CALLS:
        for record, row in _timed(records, api, process):
            if row is not None:
                domain, operation = _named(record, kinds)
                row["domain"] = domain
                row["function"] = messages.get(_handle(row["correlation"]), operation)
            yield Kind.CALLS, row
    callbacks = _object(tool.get("callback_records"))
    for record in map(_object, _list(callbacks.get("counter_collection"))):
        data = _object(record.get("dispatch_data"))
        info = _dispatch(_object(data.get("dispatch_info")), nodes, symbols)
        info |= {"process": process, "registers": record.get("arch_vgpr_count")}
        info |= {"start": data.get("start_timestamp"), "end": data.get("end_timestamp")}
        info["correlation"] = _object(data.get("correlation_id")).get("internal")
        for value in map(_object, _list(record.get("records"))):
            name = counters.get(_handle(value.get("counter_id")))
            yield Kind.COUNTERS, {**info, "counter": name, "value": value.get("value")}


def _timed(
    records: _Record, name: str, process: object
) -> Iterator[tuple[_Record, dict[str, Any] | None]]:
    """Yield the records of one kind and the cells that all kinds have."""
    for record in _list(records.get(name)):
        if not isinstance(record, dict):
            yield {}, None
            continue
        yield (
            record,
            {
                "process": process,
                "thread": record.get("thread_id"),
                "start": record.get("start_timestamp"),
                "end": record.get("end_timestamp"),
                "correlation": _object(record.get("correlation_id")).get("internal"),
                "stream": _handle(record.get("stream_id")),
            },
        )


def _dispatch(
    info: _Record, nodes: Mapping[int | None, str], symbols: Mapping[int | None, _Record]
) -> dict[str, Any]:
    symbol = symbols.get(_handle(info.get("kernel_id")), {})
    found = {
        "name": symbol.get("formatted_kernel_name") or symbol.get("kernel_name"),
        "agent": nodes.get(_handle(info.get("agent_id"))),
        "queue": _handle(info.get("queue_id")),
        "dispatch": info.get("dispatch_id"),
        "shared_memory": info.get("group_segment_size"),
        "registers": symbol.get("arch_vgpr_count"),
    }
    for what, size in (("grid", "grid_size"), ("block", "workgroup_size")):
        found |= {f"{what}_{axis}": _object(info.get(size)).get(axis) for axis in "xyz"}
    return found


def _agent(agent: _Record, process: object) -> dict[str, Any]:
    return {
        "process": process,
        "node": agent.get("node_id"),
        "logical_node": agent.get("logical_node_id"),
        "agent_type": _AGENT_TYPES.get(_handle(agent.get("type"))),
        "compute_units": agent.get("cu_count"),
        "clock_mhz": agent.get("max_engine_clk_fcompute"),
        "memory_bytes": agent.get("local_mem_size"),
        "warp_size": agent.get("wave_front_size"),
        "gfx_version": agent.get("gfx_target_version"),
        "gfx_name": agent.get("name"),
        "product": agent.get("product_name"),
        "model": agent.get("model_name"),
    }


def _named(record: _Record, kinds: Sequence[_Record]) -> tuple[str | None, str | None]:
    """Return the names of a record's kind and operation, which it has as indices."""
    kind, operation = record.get("kind"), record.get("operation")
    if not isinstance(kind, int) or not 0 <= kind < len(kinds):
        return None, None
    operations = _list(kinds[kind].get("operations"))
    if not isinstance(operation, int) or not 0 <= operation < len(operations):
        return kinds[kind].get("kind"), None
    return kinds[kind].get("kind"), operations[operation]


def _handle(value: object) -> int | None:
    """Return the number in an id: ``{"handle": 3}``, or the number itself."""
    number = value.get("handle") if isinstance(value, dict) else value
    return number if isinstance(number, int) else None


def _object(value: object) -> _Record:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
