"""The peaks of a device: arithmetic by precision and memory bandwidth, known or measured.

The rates of this machine's processor are measured on request: those of NumPy's library and its
threads do not follow from a processor's name. Products of square float32 matrices and copies of a
buffer larger than the caches are timed; the best of several runs counts. The result is kept in the
cache folder under the processor's name.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import platform
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

import msgspec
import numpy as np
import polars as pl
import rtoml

from traceana import cache
from traceana.cores import cores
from traceana.errors import InvalidInputError, NoSuchSelectionError, near
from traceana.files import config_folder, digest, text_content
from traceana.flops.call import Refusal
from traceana.trace import Trace
from traceana.trace.schema import CPU_DEVICE, conform

How = Literal["configured", "datasheet", "computed", "measured"]

RATES: Final = (
    *("fp64", "fp64_tensor", "fp32", "fp32_tensor", "tf32_tensor"),
    *("fp16", "fp16_tensor", "fp16_tensor_fp16_accumulate", "bf16", "bf16_tensor"),
    *("fp8_tensor", "int8_tensor", "fp4_tensor"),
)
"""The possible rates of a device. ``_tensor``: on tensor or matrix cores, accumulating in float32
for operands of 16 or 8 bits."""

_REAL: Final = {"c64": "fp32", "c128": "fp64", "w4a16": "fp16", "w8a16": "fp16"}
"""The multiplied types: pairs of real numbers for complex ones, weights unpacked to 16 bits."""


class Peaks(msgspec.Struct, frozen=True):
    """The highest rates of a device, dense, a multiply-accumulate being two operations.

    ``flops`` has operations per second by :data:`RATES`, without unknown ones. ``bandwidth`` is the
    bandwidth of its memory, in bytes per second. ``how`` is the kind of source: the user's file,
    the vendor's figures, multiprocessors times clock times the architecture's rate, or a
    measurement; ``source`` is the file, the document, the rates or the measurement.
    """

    name: str
    how: How
    source: str
    flops: Mapping[str, float]
    bandwidth: float | None = None


def peak_for(peaks: Peaks, precision: str | None, tensor_core: bool | None) -> float | None:
    """Return the peak operations per second of a kernel of this class, None if unknown.

    ``precision`` and ``tensor_core`` are the columns of ``names``. Where the use of tensor cores is
    unknown, they count as unused, except for precisions that only they support.
    """
    if precision is None:
        return None
    real = _REAL.get(precision, precision)
    on_tensor_cores = f"{real}_tensor"
    if tensor_core or real not in RATES:
        return peaks.flops.get(on_tensor_cores)
    return peaks.flops.get(real)


_OF_USERS: Final = ("name", "bandwidth")
"""Keys of a device in the user's file, beside its rates."""
_HIGHEST: Final = 1e9
"""TFLOP/s and GB/s beyond any device."""
_TERA: Final = 1e12
_GIGA: Final = 1e9
_LONGEST_NAME: Final = 200
_NOT_WORDS: Final = re.compile(r"[^a-z0-9]+")
# Words that some driver versions put before the name.
_VENDOR_WORDS: Final = frozenset(
    ("nvidia", "amd", "tesla", "geforce", "quadro", "instinct", "radeon", "graphics")
)
_GUIDE: Final = "CUDA C++ Programming Guide, throughput of native arithmetic instructions"


class _Device(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str]
    vendor: str | None
    compute_capability: str | None
    multiprocessors: int | None
    peaks: Peaks


def peaks_of(device: Mapping[str, Any]) -> Peaks | Refusal:
    """Return the peaks of a row of ``devices``, or the reason why they are unknown.

    Peaks are from the user's file, else from the vendors' documents, by the name that drivers
    print; devices of that name with another number of multiprocessors (slices, partitions) do not
    match. Else they are computed from multiprocessors, clock and the rates of the compute
    capability; the bandwidth is then from the trace. Raises ``InvalidInputError`` on a bad file.
    """
    words = normalized(device.get("name"))
    multiprocessors = device.get("multiprocessors")
    named = [row for row in _known() if row.pattern.fullmatch(words)] if words else []
    for row in named:
        if None in (multiprocessors, row.multiprocessors) or multiprocessors == row.multiprocessors:
            return row.peaks
    return _computed(device)


def normalized(name: str | None) -> str:
    """Return a device's name in words common to all drivers: ``v100 sxm2 16gb``."""
    if not name or len(name) > _LONGEST_NAME:
        return ""
    words = _NOT_WORDS.sub(" ", name.lower()).split()
    return " ".join(word for word in words if word not in _VENDOR_WORDS)


def _known() -> tuple[_Device, ...]:
    """Return the user's devices, then the devices of the vendors' documents."""
    file = config_folder() / "peaks.toml"
    return (*_configured(file), *devices()) if file.exists() else devices()


def _configured(file: Path) -> Iterator[_Device]:
    """Yield the devices of the user's ``file``: their peaks by name, in TFLOP/s and GB/s."""
    try:
        tables = rtoml.loads(text_content(file, "file of peaks")).get("device", [])
    except (rtoml.TomlParsingError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{file}: invalid TOML ({error}): mend it") from error
    for table in tables if isinstance(tables, list) else [tables]:
        name = table.get("name") if isinstance(table, dict) else None
        if not isinstance(name, str) or not normalized(name):
            raise InvalidInputError(f"{file}: [[device]] without a name: write name = 'H100 PCIe'")
        for key, value in table.items():
            if key not in (*_OF_USERS, *RATES):
                nearest = near(key, (*_OF_USERS, *RATES))
                hint = f"did you mean {nearest}?" if nearest else f"use one of {', '.join(RATES)}"
                raise InvalidInputError(f"{file}: {name}: unknown rate {key}: {hint}")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if key != "name" and not (number and 0 < value < _HIGHEST):
                raise InvalidInputError(
                    f"{file}: {name}: {key} = {value!r} is not positive: give TFLOP/s or GB/s"
                )
        yield _device({**table, "pattern": re.escape(normalized(name)), "source": str(file)}, "")


@functools.cache
def devices() -> tuple[_Device, ...]:
    """Return the devices of ``devices.csv``, from the vendors' documents, in its order.

    Peaks are dense, at the boost clock, in TFLOP/s (TOP/s for int8) and GB/s; peaks that the source
    does not give are left out. ``pattern`` is matched with the whole of a normalized name. NVIDIA's
    ``_tensor`` rates of 16 and 8 bits are with accumulation in float32, as frameworks ask for it;
    on GeForce boards accumulation in float16 is twice as fast. An MI250 or MI250X is two devices,
    and drivers show each: its peaks are a die's.
    """
    text = (resources.files("traceana.vocabulary") / "devices.csv").read_text("utf-8")
    listed = []
    for row in csv.DictReader(text.splitlines()):
        given = {name: value for name, value in row.items() if value}
        numbers = {name: float(given[name]) for name in (*RATES, "bandwidth") if name in given}
        listed.append(_device({**given, **numbers}, given["vendor"]))
    return tuple(listed)


def _device(table: Mapping[str, Any], vendor: str) -> _Device:
    bandwidth = table.get("bandwidth")
    peaks = Peaks(
        name=table["name"],
        how="datasheet" if vendor else "configured",
        source=table["source"],
        flops={rate: table[rate] * _TERA for rate in RATES if rate in table},
        bandwidth=None if bandwidth is None else bandwidth * _GIGA,
    )
    return _Device(
        re.compile(table["pattern"]),
        vendor or None,
        table.get("compute_capability"),
        int(table["multiprocessors"]) if "multiprocessors" in table else None,
        peaks,
    )


def with_device_model(trace: Trace, model: str) -> Trace:
    """Return ``trace`` with its unnamed devices described as the listed device ``model``.

    Raises ``NoSuchSelectionError`` where no listed name begins with the words of ``model``.
    """
    listed = _listed(model)
    filled = {
        "name": listed.peaks.name,
        "vendor": listed.vendor,
        "compute_capability": listed.compute_capability,
        "multiprocessors": listed.multiprocessors,
    }
    places = ["rank", "device"]
    used = trace.tables.activities.select(places).filter(pl.col("device") != CPU_DEVICE).unique()
    missing = used.join(trace.tables.devices, on=places, how="anti", nulls_equal=True).sort(places)
    devices = pl.concat([trace.tables.devices, conform("devices", missing)])
    unnamed = pl.col("name").is_null() & (pl.col("device") != CPU_DEVICE)
    return trace.with_tables(
        devices=devices.with_columns(
            pl.when(unnamed)
            .then(pl.coalesce(column, pl.lit(value)))
            .otherwise(column)
            .alias(column)
            for column, value in filled.items()
        )
    )


def listed_peaks(model: str) -> Peaks:
    """Return the peaks of the listed device ``model``.

    Raises ``NoSuchSelectionError`` where no listed name begins with the words of ``model``.
    """
    return _listed(model).peaks


def _listed(model: str) -> _Device:
    """Return the listed device with this driver name, else the first with this prefix."""
    words = normalized(model)
    for device in _known():
        if words and device.pattern.fullmatch(words):
            return device
    names = {normalized(device.peaks.name): device for device in _known()}
    for name, device in names.items():
        if words and f"{name} ".startswith(f"{words} "):
            return device
    near = get_close_matches(words, names, n=4, cutoff=0.4) or list(names)[-4:]
    listed = ", ".join(names[name].peaks.name for name in near)
    raise NoSuchSelectionError(f"unknown device model {model!r}; nearest: {listed}")


@functools.cache
def _capabilities() -> dict[tuple[str, str], Mapping[str, Any]]:
    file = resources.files("traceana.vocabulary") / "capabilities.toml"
    tables = rtoml.loads(file.read_text(encoding="utf-8"))["capability"]
    return {(table.get("vendor", "NVIDIA"), table["version"]): table for table in tables}


def _computed(device: Mapping[str, Any]) -> Peaks | Refusal:
    version, multiprocessors = device.get("compute_capability"), device.get("multiprocessors")
    clock = device.get("clock_khz")
    rates = _capabilities().get((str(device.get("vendor")), str(version)))
    if rates is None:
        return Refusal("unknown device and compute capability")
    if not multiprocessors or not clock:
        return Refusal("unknown device, SM count and clock not recorded")
    # kHz times operations per clock and multiprocessor.
    scale = 1e3 * clock * multiprocessors
    # For AMD's HBM3, twice the memory clock times the bus width is half of the bandwidth.
    bandwidth = None if device.get("vendor") == "AMD" else device.get("bandwidth_bytes_per_s")
    sources = (rates.get("source", _GUIDE), rates.get("tensor"))
    return Peaks(
        name=f"{multiprocessors} SMs, compute capability {version}, {clock / 1e3:g} MHz",
        how="computed",
        source="; ".join(source for source in sources if source),
        flops={rate: rates[rate] * scale for rate in RATES if rate in rates},
        bandwidth=float(bandwidth) if bandwidth else None,
    )


_SIZES: Final = (256, 512, 1024, 2048)
_REPEATS: Final = 3
_GEMM_SECONDS: Final = 3.0
_COPY_SECONDS: Final = 1.0
_COPY_BYTES: Final = 1 << 28


def calibrated(*, again: bool = False) -> Peaks:
    """Return the measured peaks of this machine's processor; takes up to 5 s the first time.

    ``again`` measures again. Without a writable cache folder the result is not kept.
    """
    processor, processors = processor_name(), cores()
    key = f"{processor} {processors} together"
    file = f"{digest((key.encode(),))[:16]}.json"
    kept = None if again else cache.read("peaks", file, key)
    if kept is None:
        kept = msgspec.json.encode((_gemm_rate(), _copy_rate()))
        cache.write("peaks", file, key, kept)
    fp32, bandwidth = msgspec.json.decode(kept, type=tuple[float, float])
    return Peaks(
        name=f"{processor}, {processors} processors",
        how="measured",
        source=f"NumPy {np.__version__}: float32 GEMM, {_COPY_BYTES >> 20} MiB copy",
        flops={"fp32": fp32},
        bandwidth=bandwidth,
    )


def processor_name() -> str:
    """Return the processor's name as the system reports it."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def _gemm_rate() -> float:
    """Return operations per second: 2 n³ over the shortest time, sizes growing."""
    random = np.random.default_rng(0)
    start, best = perf_counter(), 0.0
    for size in _SIZES:
        left = random.standard_normal((size, size), dtype=np.float32)
        right = random.standard_normal((size, size), dtype=np.float32)
        product = np.empty_like(left)
        for _ in range(_REPEATS):
            before = perf_counter()
            np.matmul(left, right, out=product)
            seconds = perf_counter() - before
            best = max(best, 2 * size**3 / max(seconds, 1e-9))
            # The next size takes at most eight times as long.
            if perf_counter() - start + 8 * seconds > _GEMM_SECONDS:
                return best
    return best


def _copy_rate() -> float:
    """Return bytes per second of a copy, read and written: STREAM's "Copy" (McCalpin 1995)."""
    source = np.ones(_COPY_BYTES // 8)
    target = np.zeros_like(source)
    start, best = perf_counter(), 0.0
    while best == 0.0 or perf_counter() - start < _COPY_SECONDS:
        before = perf_counter()
        np.copyto(target, source)
        best = max(best, 2 * source.nbytes / max(perf_counter() - before, 1e-9))
    return best
