"""The recommendations that a bundle keeps: the same as those that are computed, or none."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import msgspec
import pytest

import traceana
from tests.support.command_line import run
from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from traceana import advise as advising
from traceana.advise import advise, kept
from traceana.advise.figures import Figures
from traceana.errors import InvalidInputError
from traceana.trace import Trace
from traceana.trace.bundle import MANIFEST, Manifest

RECORDED = FIXTURES / "alexnet-cpu-ranges.json.gz"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return opened(RECORDED).save(tmp_path / "bundle")


def is_kept(trace: Trace) -> bool:
    """Return whether the recommendations on ``trace`` are read, not computed."""
    with mock.patch.object(advising, "advised", side_effect=AssertionError):
        try:
            advise(trace)
        except AssertionError:
            return False
    return True


def test_what_is_kept_is_what_would_be_computed(bundle: Path) -> None:
    trace = traceana.open(bundle)
    computed = advising.advised(Figures(trace, None))
    found = advise(trace)
    assert is_kept(traceana.open(bundle))
    assert [one.rule for one in found.findings] == [one.rule for one in computed.findings]
    assert found.findings
    for one, other in zip(found.findings, computed.findings, strict=True):
        assert one.evidence.equals(other.evidence)
        assert one.evidence.schema == other.evidence.schema
        assert one.figures == other.figures
        assert one.simulation == other.simulation
        assert (one.saving_ns, one.saving_share) == (other.saving_ns, other.saving_share)
    assert (found.notes, found.bottleneck) == (computed.notes, computed.bottleneck)


@pytest.mark.parametrize("command", ["report", "advise"])
def test_commands_print_the_same_with_and_without_it(bundle: Path, command: str) -> None:
    words = [command, str(bundle), "--format"]
    with_it = [run(*words, form).stdout for form in ("json", "terminal", "md")]
    with mock.patch.object(kept, "read", return_value=None):
        assert with_it == [run(*words, form).stdout for form in ("json", "terminal", "md")]


@pytest.mark.parametrize(
    "options",
    [{"steps": [3]}, {"step_marker": "ProfilerStep"}, {"device_model": "V100"}],
    ids=lambda options: next(iter(options)),
)
def test_a_bundle_that_is_opened_otherwise_has_recommendations_of_its_own(
    bundle: Path, options: dict[str, object]
) -> None:
    assert is_kept(traceana.open(bundle))
    assert not is_kept(traceana.open(bundle, **options))  # type: ignore[arg-type]


def test_runs_of_a_sweep_are_not_what_was_kept(bundle: Path) -> None:
    computing = mock.patch.object(advising, "advised", side_effect=AssertionError)
    with computing, pytest.raises(AssertionError):
        advise(traceana.open(bundle), batches=mock.Mock())


def test_peaks_of_the_user_are_part_of_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "traceana").mkdir()
    (tmp_path / "traceana" / "peaks.toml").write_text("[[device]]\nname = 'H100'\nfp32 = 60\n")
    assert not is_kept(traceana.open(bundle))


def test_what_cannot_be_found_keeps_no_trace_from_being_saved(tmp_path: Path) -> None:
    bad = InvalidInputError("peaks.toml: invalid")
    with mock.patch.object(advising, "advised", side_effect=bad):
        path = traceana.open(RECORDED).save(tmp_path / "bundle")
    assert traceana.open(path).kept_advice is None


def test_another_version_of_the_code_computes(bundle: Path) -> None:
    with mock.patch.object(kept, "_code", return_value="another"):
        assert not is_kept(traceana.open(bundle))


@pytest.mark.parametrize("content", [b"", b"\x80", b"{}", b"\xff" * 90])
def test_what_cannot_be_decoded_is_computed(bundle: Path, content: bytes) -> None:
    trace = traceana.open(bundle)
    assert trace.kept_advice is not None
    assert kept.read(trace.kept_advice) is not None
    assert kept.read(content) is None


def test_a_damaged_file_is_named(bundle: Path) -> None:
    file = bundle / "advice.msgpack"
    file.write_bytes(file.read_bytes()[:-1])
    found = run("report", str(bundle))
    assert found.exit_code == 17
    assert "advice.msgpack is damaged: save it again from the original trace" in found.stderr


def test_a_bundle_of_an_earlier_version_has_none(bundle: Path) -> None:
    (bundle / "advice.msgpack").unlink()
    file = bundle / MANIFEST
    manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    del manifest.checksums["advice"]
    file.write_bytes(msgspec.json.encode(manifest.checked()))
    assert not is_kept(traceana.open(bundle))
