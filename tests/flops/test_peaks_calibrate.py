"""The processor's own rates: plausible, kept, and measured anew when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from traceana.flops import peaks
from traceana.flops.peaks import calibrated, processor_name


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peaks, "_GEMM_SECONDS", 0.2)
    monkeypatch.setattr(peaks, "_COPY_SECONDS", 0.1)
    monkeypatch.setattr(peaks, "_COPY_BYTES", 1 << 24)


def test_measured_rates_are_plausible() -> None:
    peaks = calibrated()
    assert peaks.how == "measured"
    assert processor_name() in peaks.name
    # Between a microcontroller and the largest server.
    assert 1e6 < peaks.flops["fp32"] < 1e15
    assert peaks.bandwidth is not None
    assert 1e6 < peaks.bandwidth < 1e14
    assert set(peaks.flops) == {"fp32"}


def test_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = calibrated()
    (kept,) = (tmp_path / "traceana" / "peaks").iterdir()

    def fail() -> float:
        raise AssertionError("measured again")

    monkeypatch.setattr(peaks, "_gemm_rate", fail)
    assert calibrated() == first
    with pytest.raises(AssertionError, match="measured again"):
        calibrated(again=True)
    kept.write_bytes(b'{"processor": "another"')
    with pytest.raises(AssertionError, match="measured again"):
        calibrated()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"processor": "x", "processors": 1, "fp32": 1.0, "bandwidth": 1.0}',
        b'{"processor": "x", "processors": 1, "fp32": -1.0, "bandwidth": 1.0}',
    ],
)
def test_a_kept_file_that_is_not_of_this_processor_is_not_used(
    content: bytes, tmp_path: Path
) -> None:
    calibrated()
    (kept,) = (tmp_path / "traceana" / "peaks").iterdir()
    before = kept.read_bytes()
    kept.write_bytes(content)
    calibrated()
    assert kept.read_bytes() not in (content, b"")
    assert len(kept.read_bytes()) == pytest.approx(len(before), abs=20)


def test_a_cache_folder_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibrated().flops["fp32"] > 0


def test_the_name_comes_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any, **__: Any) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert processor_name()
