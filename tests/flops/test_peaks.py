"""Peaks of devices by the names that drivers print, and computed for unknown names."""

from __future__ import annotations

import csv
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from traceana.errors import InvalidInputError
from traceana.flops.call import Refusal
from traceana.flops.peaks import (
    RATES,
    Peaks,
    devices,
    listed_peaks,
    normalized,
    peak_for,
    peaks_of,
)
from traceana.trace.schema import DEVICES

FOLDER = resources.files("traceana.vocabulary")


def table(file: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((FOLDER / file).read_text("utf-8"))[key]
    return found


def listed_devices() -> list[dict[str, Any]]:
    texts = ("vendor", "name", "pattern", "compute_capability", "source")
    return [
        {key: value if key in texts else float(value) for key, value in row.items() if value}
        for row in csv.DictReader((FOLDER / "devices.csv").read_text("utf-8").splitlines())
    ]


LISTED = listed_devices()
CAPABILITIES = table("capabilities.toml", "capability")


def row(name: str | None = None, **columns: Any) -> dict[str, Any]:
    return {**dict.fromkeys(DEVICES), "name": name, **columns}


def known(device: dict[str, Any]) -> Peaks:
    found = peaks_of(device)
    assert isinstance(found, Peaks), found
    return found


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-PG509-200", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2"),
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE"),
        ("Tesla V100-DGXS-32GB", "Tesla V100-DGXS"),
        ("Tesla P100-SXM2-16GB", "Tesla P100-SXM2"),
        ("Tesla P100-PCIE-16GB", "Tesla P100-PCIE-16GB"),
        ("Tesla P100-PCIE-12GB", "Tesla P100-PCIE-12GB"),
        ("Tesla K40c", "Tesla K40"),
        ("Tesla K40m", "Tesla K40"),
        ("Tesla K80", "Tesla K80, one of its two GPUs"),
        ("Tesla M40 24GB", "Tesla M40"),
        ("GeForce GTX TITAN X", "GeForce GTX TITAN X (Maxwell)"),
        ("NVIDIA GeForce GTX TITAN X", "GeForce GTX TITAN X (Maxwell)"),
        ("TITAN X (Pascal)", "TITAN X (Pascal)"),
        ("NVIDIA TITAN X (Pascal)", "TITAN X (Pascal)"),
        ("GeForce GTX 1080", "GeForce GTX 1080"),
        ("NVIDIA GeForce GTX 1080 Ti", "GeForce GTX 1080 Ti"),
        ("NVIDIA TITAN V", "TITAN V"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("Tesla T4", "Tesla T4"),
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "GeForce RTX 5090"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200, one of its two GPUs"),
        ("AMD Instinct MI300X", "Instinct MI300X"),
        ("AMD Instinct MI300X VF", "Instinct MI300X"),
        ("AMD Instinct MI250X", "Instinct MI250X, one of its two dies"),
        ("AMD Instinct MI210", "Instinct MI210"),
        ("AMD Instinct MI350X", "Instinct MI350X"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "GeForce RTX 4060 Laptop GPU"),
        ("NVIDIA GeForce RTX 5070 Ti", "GeForce RTX 5070 Ti"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
    ],
)
def test_names_as_drivers_print_them(name: str, listed: str) -> None:
    peaks = known(row(name))
    assert (peaks.name, peaks.how) == (listed, "datasheet")
    assert peaks.source


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA TITAN Xp", "NVIDIA GeForce RTX 2080 SUPER", "NVIDIA GeForce RTX 2080", "Tesla"),
        *("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "AMD Radeon Graphics", "NVIDIA", "", "a1.|b", None),
        *("NVIDIA A100", "x" * 100_000, "NVIDIA H200 NVL", ".*", "NVIDIA A1000"),
    ],
)
def test_other_names_are_not_taken_for_listed_ones(name: str | None) -> None:
    found = peaks_of(row(name))
    assert isinstance(found, Refusal)
    assert name is None or len(name) < 3 or name not in found.reason


def test_multiprocessors_distinguish_devices_of_one_name() -> None:
    name = "AMD Instinct MI250X / MI250"
    found = [known(row(name, multiprocessors=count)).name for count in (104, 110, 208, 220, None)]
    assert [text.removeprefix("Instinct ") for text in found] == [
        "MI250, one of its two dies",
        "MI250X, one of its two dies",
        "MI250, both dies",
        "MI250X, both dies",
        "MI250X, one of its two dies",
    ]
    # A partition of a device is not the device.
    part = row("AMD Instinct MI300X", vendor="AMD", multiprocessors=38)
    assert isinstance(peaks_of(part), Refusal)


def test_computed_where_the_name_is_unknown() -> None:
    device = row(
        "NVIDIA Mystery",
        vendor="NVIDIA",
        compute_capability="7.0",
        multiprocessors=80,
        clock_khz=1_530_000,
        bandwidth_bytes_per_s=898_048_000_000,
    )
    peaks = known(device)
    assert peaks.how == "computed"
    assert "CUDA C++ Programming Guide" in peaks.source
    assert "V100 whitepaper" in peaks.source
    # 64 multiply-adds a clock and multiprocessor, 512 on tensor cores.
    assert peaks.flops["fp32"] == pytest.approx(80 * 1.53e9 * 128)
    assert peaks.flops["fp16_tensor"] == pytest.approx(80 * 1.53e9 * 1024)
    assert peaks.bandwidth == 898_048_000_000
    for missing in ("compute_capability", "multiprocessors", "clock_khz", "vendor"):
        assert isinstance(peaks_of({**device, missing: None}), Refusal)
    assert isinstance(peaks_of({**device, "compute_capability": "99.0"}), Refusal)
    # gfx90a and others call themselves 9.0 too; that is not Hopper.
    assert isinstance(peaks_of({**device, "vendor": "AMD", "compute_capability": "9.0"}), Refusal)


def test_a_device_of_amd_without_a_name() -> None:
    peaks = known(
        row(
            vendor="AMD",
            compute_capability="9.4",
            multiprocessors=304,
            clock_khz=2_100_000,
            bandwidth_bytes_per_s=2_662_400_000_000,
        )
    )
    listed = known(row("AMD Instinct MI300X"))
    assert set(peaks.flops) == set(listed.flops)
    for rate, value in listed.flops.items():
        assert peaks.flops[rate] == pytest.approx(value, rel=1e-3)
    assert peaks.bandwidth is None


def test_the_bandwidth_of_the_documents_comes_before_that_of_the_trace() -> None:
    assert known(row("Tesla V100-SXM2-32GB", bandwidth_bytes_per_s=1)).bandwidth == 900e9


def test_a_roofline_needs_a_bandwidth_of_every_listed_device() -> None:
    assert known(row("Tesla V100-DGXS-32GB")).bandwidth == 900e9
    assert all("bandwidth" in device for device in LISTED)


@pytest.mark.parametrize("device", LISTED, ids=lambda device: device["name"])
def test_every_device_has_its_sources_and_no_unknown_key(device: dict[str, Any]) -> None:
    facts = {
        "vendor",
        "name",
        "pattern",
        "source",
        "compute_capability",
        "multiprocessors",
        "boost_mhz",
    }
    assert set(device) <= facts | {"bandwidth", *RATES}
    assert device["source"]
    assert re.compile(device["pattern"])
    rates = {rate: device[rate] for rate in RATES if rate in device}
    assert rates
    assert all(value > 0 for value in rates.values())
    for rate, value in rates.items():
        plain = device.get(rate.removesuffix("_tensor"))
        assert plain is None or value >= plain


@pytest.mark.parametrize("device", LISTED, ids=lambda device: device["name"])
def test_listed_figures_agree_with_multiprocessors_times_clock(device: dict[str, Any]) -> None:
    """Two sources for one figure: a slip of the pen in either is seen."""
    vendor = "NVIDIA" if "compute_capability" in device else "AMD"
    version = device.get("compute_capability", "9.4" if "MI3" in device["name"] else None)
    rates = next(
        (
            one
            for one in CAPABILITIES
            if (one.get("vendor", "NVIDIA"), one["version"]) == (vendor, version)
        ),
        None,
    )
    if rates is None or "boost_mhz" not in device or "MI35" in device["name"]:
        pytest.skip("no rates or no clock to compare with")
    compared = 0
    half_rate = "fp16_tensor_fp16_accumulate" in device
    for rate in RATES:
        if rate not in device or rate not in rates:
            continue
        expected = device["multiprocessors"] * device["boost_mhz"] * 1e6 * rates[rate] / 1e12
        if half_rate and rate in ("fp16_tensor", "bf16_tensor", "tf32_tensor", "fp8_tensor"):
            expected /= 2
        # Hopper's tensor cores are quoted at a lower clock; the TITAN V's at a rounded one.
        tolerance = 0.1 if device["name"][:4] in ("H100", "H200", "TITA") else 0.03
        assert device[rate] == pytest.approx(expected, rel=tolerance), rate
        compared += 1
    assert compared


def test_no_name_is_listed_twice() -> None:
    names = [device["name"] for device in LISTED]
    assert len(set(names)) == len(names) == len(devices())


@pytest.mark.parametrize(
    ("precision", "tensor_core", "tera"),
    [
        ("fp32", False, 19.5),
        ("fp32", None, 19.5),
        ("tf32", True, 156),
        ("tf32", None, 156),
        ("fp16", True, 312),
        ("fp16", False, 78),
        ("fp16", None, 78),
        ("bf16", True, 312),
        ("fp64", True, 19.5),
        ("fp64", False, 9.7),
        ("int8", True, 624),
        ("c64", False, 19.5),
        ("c128", None, 9.7),
        ("fp32", True, None),
        ("fp8", True, None),
        ("fp4", None, None),
        ("nonsense", None, None),
        (None, None, None),
    ],
)
def test_the_peak_of_a_kernel(
    precision: str | None, tensor_core: bool | None, tera: float | None
) -> None:
    found = peak_for(known(row("NVIDIA A100-SXM4-80GB")), precision, tensor_core)
    assert found == (None if tera is None else pytest.approx(tera * 1e12))


def test_normalized() -> None:
    assert normalized("NVIDIA GeForce RTX(tm) 2080-Ti") == "rtx tm 2080 ti"
    assert normalized("AMD Radeon Graphics") == normalized(None) == ""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the user's file of peaks, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "traceana").mkdir()
    return tmp_path / "traceana" / "peaks.toml"


def test_the_users_peaks_go_before_the_datasheets(configured: Path) -> None:
    configured.write_text(
        '[[device]]\nname = "Tesla V100-SXM2-16GB"\nfp32 = 14.1\nbandwidth = 830\n'
        '[[device]]\nname = "My Accelerator"\nbf16_tensor = 40\n',
        "utf-8",
    )
    found = known(row("NVIDIA V100-SXM2-16GB", multiprocessors=80))
    assert (found.how, found.source) == ("configured", str(configured))
    assert (found.flops, found.bandwidth) == ({"fp32": 14.1e12}, 830e9)
    assert known(row("my accelerator")).flops == {"bf16_tensor": 40e12}
    assert listed_peaks("my accelerator").how == "configured"
    assert known(row("Tesla V100-SXM2-32GB")).how == "datasheet"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[device]]\nname = "A"\nfp23 = 1', "did you mean fp32?"),
        ('[[device]]\nname = "A"\nfp32 = -1', "is not positive"),
        ('[[device]]\nname = "A"\nfp32 = "1"', "is not positive"),
        ('[[device]]\nname = "A"\nbandwidth = inf', "is not positive"),
        ('[[device]]\nname = "A"\nfp32 = nan', "is not positive"),
        ('[[device]]\nname = "A"\nfp32 = true', "is not positive"),
        ("[[device]]\nfp32 = 1", "without a name"),
        ("device = 1", "without a name"),
        ("device = [1]", "without a name"),
        ("[[device", "invalid TOML"),
    ],
)
def test_a_file_of_peaks_that_is_wrong_is_one_line(
    configured: Path, text: str, message: str
) -> None:
    configured.write_text(text, "utf-8")
    with pytest.raises(InvalidInputError, match=re.escape(message)) as raised:
        peaks_of(row("Tesla V100-SXM2-16GB"))
    assert str(raised.value).startswith(f"{configured}: ")
