"""An nsys export's description of the session: GPUs, machine, command, start time, diagnostics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl

from traceana.readers.cupti import cuda_device, fact
from traceana.readers.cupti_tables import Export
from traceana.readers.nsys import EXPORT_TABLES
from traceana.readers.table_source import TableSource, as_int
from traceana.trace.schema import ACTIVITIES

DIAGNOSTICS: Final = "DIAGNOSTIC_EVENT"

_ENVIRONMENT: Final = {
    "NvDriverVersion": "driver_version",
    "CudaDriverVersion": "cuda_driver_version",
    "Hostname": "host",
    "OsDescription": "operating_system",
    "CpuDescription": "cpu",
    "CpuCores": "cpu_cores",
}

_OPTIONS: Final = {
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": "cuda_graph_trace",
    "CUDA_SKIP_SOME_API_CALLS": "skips_some_api_calls",
    "PROCESS_0:COLLECT_CUDA_TRACE": "cuda_traced",
}

_COMMAND: Final = re.compile(r"PROCESS_0:(?:COMMAND|ARGUMENT_\d+)")
_LOSS: Final = re.compile(r"\b(?:lost|dropped|might be missing|not all\b.*\bcollected)\b", re.I)

_LOST_COUNT: Final = re.compile(
    r"dropped:?\s+(\d{1,15})\b|\blost\s+(\d{1,15})\b|\(\s*(\d{1,15})\s*\)\s+were lost", re.I
)

_UNSUPPORTED: Final = re.compile(
    r"CUDA driver version \(?([\d.]+)\)? is not supported by this \w+ of Nsight Systems"
)
"""nsys then loads the libraries of an older driver, which record no work."""

_WARNING: Final = 2
_LONGEST_MESSAGE: Final = 300
_MOST_MESSAGES: Final = 50
_GPUS: Final = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU")
"""Since 2021.2, and before."""


def describe_recording(export: Export, first_ns: int, processes: Sequence[int]) -> dict[str, Any]:
    """Return format_version, producer, epoch_ns and properties of the ``TraceMeta``.

    Environment variables are not read, because they can hold secrets.
    """
    source = export.source
    facts = {
        str(row.get("name")): str(row.get("value"))
        for table in EXPORT_TABLES
        for row in source.records(table)
    }
    name = facts.get("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")
    # The file's clock starts with the session, or is Unix time where the export was normalized
    # (nsys export --ts-normalize). --ts-shift is subtracted.
    shift = as_int(facts.get("EXPORT_PARAM_TIME_SHIFT", 0)) or 0
    starts = [row.get("utcEpochNs") for row in source.records("TARGET_INFO_SESSION_START_TIME")]
    start = as_int(starts[0]) if starts else None
    if facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        start = 0

    properties: dict[str, Any] = {}
    for row in source.records("TARGET_INFO_SYSTEM_ENV"):
        key, value = _ENVIRONMENT.get(str(row.get("name"))), row.get("value")
        if key and value:
            properties.setdefault(key, str(value))
    command = []
    for row in source.records("META_DATA_CAPTURE"):
        option, value = str(row.get("name")), str(row.get("value"))
        if option in _OPTIONS:
            properties.setdefault(_OPTIONS[option], value)
        elif _COMMAND.fullmatch(option):
            command.append(value)
    if command:
        properties["command"] = command
    named = {
        as_int(row.get("pid")): row["name"]
        for row in source.records("PROCESSES")
        if isinstance(row.get("name"), str)
    }
    properties["processes"] = {str(pid): named.get(pid) for pid in processes}
    # The most serious first, each once: nsys repeats that a process has no events.
    ordered = sorted(_messages(source), key=lambda message: -message[0])
    for _, text in ordered:
        if unsupported := _UNSUPPORTED.search(text):
            properties["unsupported_driver"] = unsupported[1]
    warnings = dict.fromkeys(text for severity, text in ordered if severity >= _WARNING)
    if warnings:
        properties["warnings"] = list(warnings)[:_MOST_MESSAGES]
    return {
        "format_version": facts.get("EXPORT_SCHEMA_VERSION"),
        "producer": f"{name} {facts.get('EXPORT_PRODUCT_VERSION', '')}".strip(),
        # Beyond int64, the recorded times are damaged.
        "epoch_ns": None if start is None else as_int(start + first_ns - shift),
        "properties": properties,
    }


def count_lost(export: Export) -> None:
    """Count in the ledger the events that nsys lost, 1 for a message without a number.

    The conservation law does not cover events that are not in the file: ``kept`` is true.
    """
    for _, text in _messages(export.source):
        if _LOSS.search(text):
            match = _LOST_COUNT.search(text)
            count = int(next(number for number in match.groups() if number)) if match else 1
            export.ledger.add("dropped_by_profiler", count, table="-", kept=True, detail=text)


def _messages(source: TableSource) -> list[tuple[int, str]]:
    """Return severity and text of nsys' diagnostic messages."""
    return [
        (
            as_int(row.get("severity")) or 0,
            " ".join(str(row.get("text")).split())[:_LONGEST_MESSAGE],
        )
        for row in source.records(DIAGNOSTICS)
    ]


def describe_devices(export: Export) -> Iterator[dict[str, Any]]:
    """Return rows of ``devices`` with the numbers that :func:`on_physical_devices` gives."""
    gpus = [row for table in _GPUS for row in export.source.records(table)]
    gpu_of_id = {as_int(gpu.get("id")): gpu for gpu in gpus}
    cuda, ambiguous = _cuda_devices(export.source)
    numbered = [(number, gpu_of_id[gpu]) for _, number, gpu in cuda.rows() if gpu in gpu_of_id]
    if ambiguous:
        numbered = list(gpu_of_id.items())
    elif not numbered:
        # The oldest exports number the GPUs as CUDA does.
        keys = ("cuDevice", "deviceId", "id")
        numbers = [
            next((gpu[key] for key in keys if gpu.get(key) is not None), None) for gpu in gpus
        ]
        numbered = [(as_int(number), gpu) for number, gpu in zip(numbers, gpus, strict=True)]
    for number, gpu in numbered:
        name = gpu.get("name")
        bandwidth = fact(gpu, "bandwidth_bytes_per_s", "memoryBandwidth")
        text = name if isinstance(name, str) and name else None
        yield cuda_device(gpu, number, text, bandwidth)


def _cuda_devices(source: TableSource) -> tuple[pl.DataFrame, bool]:
    """Return the GPU of each process's device numbers, and whether one number means several GPUs.

    The columns are process, device and gpu.
    """
    keys = {"process": "pid", "device": "cudaId", "gpu": "gpuId"}
    records = source.records("TARGET_INFO_CUDA_DEVICE")
    rows = [[as_int(row.get(key)) for key in keys.values()] for row in records]
    devices = (
        pl.DataFrame(rows, schema=dict.fromkeys(keys, pl.Int64), orient="row")
        .with_columns(pl.col("device", "gpu").cast(ACTIVITIES["device"], strict=False))
        .drop_nulls(["device", "gpu"])
        .unique(["process", "device"], keep="first", maintain_order=True)
    )
    numbers = devices.select("device", "gpu").unique()["device"]
    return devices, numbers.is_duplicated().any()


def numbers_of_gpus(source: TableSource) -> pl.DataFrame | None:
    """Return the ``device`` of each ``gpu``, as activities have it; None where both are equal.

    It is None where each process numbers its own GPUs, and without a record of CUDA's numbers.
    """
    cuda, ambiguous = _cuda_devices(source)
    if ambiguous or cuda.is_empty():
        return None
    return cuda.select("gpu", "device").unique("gpu", keep="first")


def on_physical_devices(source: TableSource, activities: pl.DataFrame) -> pl.DataFrame:
    """Return ``activities`` with one device number per GPU.

    CUDA numbers the visible devices of a process. Where ``CUDA_VISIBLE_DEVICES`` gives each rank
    its own GPU, each numbers it 0: the activities then get the machine's number of the GPU. Where
    all processes use the same numbers, CUDA's numbers stay.
    """
    cuda, ambiguous = _cuda_devices(source)
    if not ambiguous:
        return activities
    return (
        activities.join(cuda, on=["process", "device"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("gpu", "device").alias("device"))
        .drop("gpu")
    )
