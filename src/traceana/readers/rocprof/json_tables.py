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
from traceana.readers.rocprof.columns import JSON, Id, Kind
from traceana.readers.rocprof.csv_tables import FileTables, Table

_BUFFERS: Final = {
    "kernel_dispatch": Kind.KERNELS,
    "memory_copy": Kind.COPIES,
    **dict.fromkeys(
        ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api", "marker_api"), Kind.CALLS
    ),
}
_AGENT_TYPES: Final[Mapping[int | None, str]] = {1: "CPU", 2: "GPU"}
_Record = Mapping[str, Any]
_Cells = dict[str, Any]


def json_tables(content: bytes) -> FileTables:
    """Return the tables in ``content``; records that are not objects are malformed.

    A file that is not valid JSON, such as one that is cut, has no tables.
    """
    try:
        document = msgspec.json.decode(content)
    except UNDECODABLE:
        return FileTables([], 0, 0, content.count(b"\0"), cut=True)
    rows: dict[Kind, list[_Cells]] = {}
    malformed = 0
    for tool in _list(_object(document).get("rocprofiler-sdk-tool")):
        for kind, cells in _Process(_object(tool)).rows():
            if cells is None:
                malformed += 1
            else:
                rows.setdefault(kind, []).append(cells)
    tables = []
    for kind, rows_of_kind in rows.items():
        # As in CSV every cell is a text.
        columns = {
            name: [None if cells[name] is None else str(cells[name]) for cells in rows_of_kind]
            for name in rows_of_kind[0]
        }
        frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
        tables.append(Table(kind, "rocprofv3", frame))
    return FileTables(tables, malformed, 0, 0, cut=False)


class _Process:
    """The entry of one process, and the names of the ids in its records."""

    def __init__(self, tool: _Record) -> None:
        self._tool = tool
        self._number = _object(tool.get("metadata")).get("pid")
        self._agents = _objects(tool.get("agents"))
        self._agent_names = {
            _id(agent.get("id")): f"Agent {agent.get('node_id')}" for agent in self._agents
        }
        symbols = _objects(tool.get("kernel_symbols"))
        self._symbols = {_id(symbol.get("kernel_id")): symbol for symbol in symbols}
        counters = _objects(tool.get("counters"))
        self._counter_names = {_id(counter.get("id")): counter.get("name") for counter in counters}
        strings = _object(tool.get("strings"))
        self._kinds = _objects(strings.get("buffer_records"))
        messages = _objects(strings.get("marker_api"))
        self._messages = {_id(message.get("key")): message.get("value") for message in messages}

    def rows(self) -> Iterator[tuple[Kind, _Cells | None]]:
        """Yield the cells of each row, None for a record that is not an object."""
        for agent in self._agents:
            agent_type = _AGENT_TYPES.get(_id(agent.get("type")))
            yield Kind.AGENTS, self._cells(Kind.AGENTS, agent) | {"agent_type": agent_type}
        buffers = _object(self._tool.get("buffer_records"))
        for name, kind in _BUFFERS.items():
            for record in _list(buffers.get(name)):
                yield kind, self._activity(kind, record) if isinstance(record, dict) else None
        callbacks = _object(self._tool.get("callback_records"))
        for record in _objects(callbacks.get("counter_collection")):
            dispatch = _object(_object(record.get("dispatch_data")).get("dispatch_info"))
            cells = self._kernel(dispatch) | self._cells(Kind.COUNTERS, record)
            for counter in _objects(record.get("records")):
                cells["counter"] = self._counter_names.get(_id(counter.get("counter_id")))
                cells["value"] = counter.get("value")
                yield Kind.COUNTERS, dict(cells)

    def _cells(self, kind: Kind, record: _Record) -> _Cells:
        cells: _Cells = {"process": self._number}
        for cell, path in JSON[kind].items():
            # The value is None where a path leads nowhere.
            value: Any = record
            for key in path.split("."):
                value = _object(value).get(key)
            cells[cell] = _id(value) if isinstance(path, Id) else value
        return cells

    def _activity(self, kind: Kind, record: _Record) -> _Cells:
        cells = self._cells(kind, record)
        if kind is Kind.KERNELS:
            return cells | self._kernel(_object(record.get("dispatch_info")))
        domain, operation = self._names(record)
        if kind is Kind.COPIES:
            cells["direction"] = operation
            cells["source"] = self._agent_names.get(_id(record.get("src_agent_id")))
            cells["destination"] = self._agent_names.get(_id(record.get("dst_agent_id")))
        else:
            cells["domain"] = domain
            cells["function"] = self._messages.get(_id(cells["correlation"]), operation)
        return cells

    def _kernel(self, dispatch: _Record) -> _Cells:
        """Return the kernel and the agent of a dispatch, which it has as ids."""
        symbol = self._symbols.get(_id(dispatch.get("kernel_id")), {})
        return {
            "name": symbol.get("formatted_kernel_name") or symbol.get("kernel_name"),
            "registers": symbol.get("arch_vgpr_count"),
            "agent": self._agent_names.get(_id(dispatch.get("agent_id"))),
        }

    def _names(self, record: _Record) -> tuple[str | None, str | None]:
        """Return the names of a record's kind and operation, which it has as indices."""
        kind, operation = record.get("kind"), record.get("operation")
        if not isinstance(kind, int) or not 0 <= kind < len(self._kinds):
            return None, None
        operations = _list(self._kinds[kind].get("operations"))
        if not isinstance(operation, int) or not 0 <= operation < len(operations):
            return self._kinds[kind].get("kind"), None
        return self._kinds[kind].get("kind"), operations[operation]


def _id(value: object) -> int | None:
    """Return the number in an id: ``{"handle": 3}``, or the number itself."""
    number = value.get("handle") if isinstance(value, dict) else value
    return number if isinstance(number, int) else None


def _object(value: object) -> _Record:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _objects(value: object) -> list[_Record]:
    """Return the elements of a list, empty objects for elements of another type."""
    return [_object(element) for element in _list(value)]
