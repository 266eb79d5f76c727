"""The GPUs of an nsys export, and the GPU of each synchronization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from traceana.ingest.cupti import capability, devices_of_work, fact
from traceana.ingest.table_source import TableSource, as_int
from traceana.trace.schema import ACTIVITIES

_GPUS: Final = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU")
"""Since 2021.2, and before."""
_CUDA: Final = "TARGET_INFO_CUDA_DEVICE"
_CONTEXTS: Final = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
_LARGEST_NUMBER: Final = 2**31 - 1


def devices(database: TableSource, used: pl.Series) -> pl.DataFrame:
    """Return the devices with activities, or every device in the file where there are none.

    ``used`` holds the device numbers of the activities; a device that the file does not describe
    gets a row without properties.
    """
    gpus = [row for table in _GPUS for row in database.records(table)]
    numbers = _numbered(database, gpus)
    return devices_of_work([_device(number, gpu) for number, gpu in numbers], used)


def _numbered(
    database: TableSource, gpus: list[dict[str, Any]]
) -> list[tuple[int | None, dict[str, Any]]]:
    """Return each GPU with its number in the activities (see :func:`on_physical_devices`)."""
    by_id = {as_int(gpu.get("id")): gpu for gpu in gpus}
    cuda = _cuda_devices(database)
    if _ambiguous(cuda):
        return list(by_id.items())
    pairs = [(number, by_id[gpu]) for _, number, gpu in cuda.rows() if gpu in by_id]
    if pairs:
        return pairs
    # The oldest exports number the GPUs as CUDA does.
    keys = ("cuDevice", "deviceId", "id")
    return [
        (next((as_int(gpu[key]) for key in keys if gpu.get(key) is not None), None), gpu)
        for gpu in gpus
    ]


def _cuda_devices(database: TableSource) -> pl.DataFrame:
    """Return the GPU of each process's device numbers: columns process, device, gpu."""
    keys = {"process": "pid", "device": "cudaId", "gpu": "gpuId"}
    rows = [[as_int(row.get(key)) for key in keys.values()] for row in database.records(_CUDA)]
    return (
        pl.DataFrame(rows, schema=dict.fromkeys(keys, pl.Int64), orient="row")
        .with_columns(pl.col("device", "gpu").cast(ACTIVITIES["device"], strict=False))
        .drop_nulls(["device", "gpu"])
        .unique(["process", "device"], keep="first", maintain_order=True)
    )


def _ambiguous(cuda: pl.DataFrame) -> bool:
    return cuda.select("device", "gpu").unique()["device"].is_duplicated().any()


def on_physical_devices(database: TableSource, work: pl.DataFrame) -> pl.DataFrame:
    """Return activities with one device number per GPU.

    CUDA numbers the visible devices of a process. Where ``CUDA_VISIBLE_DEVICES`` gives each rank
    its own GPU, each numbers it 0: the activities then get the machine's number of the GPU. Where
    all processes use the same numbers, CUDA's numbers stay.
    """
    cuda = _cuda_devices(database)
    if not _ambiguous(cuda):
        return work
    return (
        work.join(cuda, on=["process", "device"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("gpu", "device").alias("device"))
        .drop("gpu")
    )


def _device(number: int | None, gpu: dict[str, Any]) -> dict[str, Any]:
    name = gpu.get("name")
    hertz = fact(gpu, "clock_khz", "clockRate")
    # TARGET_INFO_CUDA_GPU is CUPTI's device record: kHz there, Hz in TARGET_INFO_GPU.
    khz = fact(gpu, "clock_khz", "coreClockRate") if hertz is None else hertz // 1000
    return {
        "device": number if number is not None and 0 <= number <= _LARGEST_NUMBER else None,
        "name": name if isinstance(name, str) and name else None,
        "vendor": "NVIDIA",
        "compute_capability": capability(gpu, "computeMajor", "computeMinor")
        or capability(gpu, "computeCapabilityMajor", "computeCapabilityMinor"),
        "multiprocessors": fact(gpu, "multiprocessors", "smCount", "numMultiprocessors"),
        "clock_khz": khz,
        "memory_bytes": fact(gpu, "memory_bytes", "totalMemory", "globalMemorySize"),
        "bandwidth_bytes_per_s": fact(gpu, "bandwidth_bytes_per_s", "memoryBandwidth"),
        "warp_size": fact(gpu, "warp_size", "threadsPerWarp", "numThreadsPerWarp"),
    }


def devices_of_contexts(database: TableSource, work: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the device of each context: columns process, context, device.

    ``work`` holds activities with a device. Where the activities of a context have one device, that
    is its device; else the file's list of contexts determines it.
    """
    columns = {name: ACTIVITIES[name] for name in ("process", "context", "device")}
    met = [frame.select(*columns).drop_nulls().unique() for frame in work]
    seen = (
        pl.concat([pl.DataFrame(schema=columns), *met])
        .unique()
        .filter(~pl.struct("process", "context").is_duplicated())
    )
    keys = ("processId", "contextId", "deviceId")
    listed = [
        [as_int(row.get(key)) for key in keys]
        for table in _CONTEXTS
        for row in database.records(table)
    ]
    in_file = pl.DataFrame(listed, schema=dict.fromkeys(columns, pl.Int64), orient="row").select(
        pl.col(name).cast(dtype, strict=False) for name, dtype in columns.items()
    )
    return (
        pl.concat([seen, in_file])
        .drop_nulls()
        .unique(["process", "context"], keep="first", maintain_order=True)
    )


def with_devices(syncs: pl.DataFrame, contexts: pl.DataFrame) -> pl.DataFrame:
    """Return synchronizations with the device of their context.

    CUPTI's synchronization records have no device; nsys writes 0 for every context.
    """
    known = contexts.rename({"device": "_device"})
    return (
        syncs.join(known, on=["process", "context"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("_device", "device").alias("device"))
        .drop("_device")
    )
