"""Reports are exported by nsys, once; failures are one-line errors."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readers.nsys.writing import KERNEL, RUNTIME, call, export, kernel
from traceana.cache import folder as cache_folder
from traceana.errors import CannotWriteError, MissingDependencyError, TraceanaError
from traceana.readers import read
from traceana.readers.detect import detect
from traceana.readers.source import silent

REPORT = b"NVIDIA Tegra Profiler Report 1.\n" + bytes(100)
STREAM = b"U3w[END]NVIDIA Nsight Systems Stream 2022.4.2.1" + bytes(100)
REAL = shutil.which("nsys")

NSYS = """#!{python}
import shutil, sys
assert sys.argv[1:4] == ["export", "--type", "sqlite"], sys.argv
log = open({log!r}, "a")
print("nsys", file=log)
target, source = sys.argv[5], sys.argv[6]
assert open(source, "rb").read(28) == b"NVIDIA Tegra Profiler Report"
for percent in (1, 50, 100):
    sys.stderr.write(f"\\rExporting 2 events: [===={{percent}}%   ]")
shutil.copyfile({export!r}, target)
"""
IMPORTER = """#!{python}
import shutil, sys
assert (sys.argv[1], sys.argv[3]) == ("--input-file", "--output-file"), sys.argv
print("importer", file=open({log!r}, "a"))
open(sys.argv[4], "wb").write({report!r})
"""
BROKEN = """#!{python}
import sys
sys.stderr.write("\\rExporting: [10%  ]\\nExportation error: \\x1b[31mno such section\\n\\n")
sys.exit(3)
"""


class Desk:
    """A user's machine: programs on the PATH, a cache, a report."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = home / "log"
        self.bin = home / "opt" / "bin"
        self.host = home / "opt" / "host-linux-x64"
        for folder in (self.bin, self.host):
            folder.mkdir(parents=True)
        self.report = home / "my run.nsys-rep"
        self.report.write_bytes(REPORT)
        tables = {KERNEL: [kernel(1, 2)], RUNTIME: [call(1, 2)]}
        self.export = export(home / "export.sqlite", tables)
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))

    def install(self, folder: Path, name: str, text: str) -> None:
        program = folder / name
        program.write_text(
            text.format(
                python=sys.executable, log=str(self.log), export=str(self.export), report=REPORT
            )
        )
        program.chmod(0o755)

    @property
    def runs(self) -> list[str]:
        return self.log.read_text().split()

    def refused(self, path: Path, error: type[TraceanaError]) -> str:
        with pytest.raises(error) as caught:
            read(path)
        message = str(caught.value)
        assert "\n" not in message
        return message


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_a_report_is_detected_by_its_content(desk: Desk, tmp_path: Path) -> None:
    stream = tmp_path / "a.json"
    stream.write_bytes(STREAM)
    assert detect(desk.report).name == "nsys-report"
    assert detect(stream).name == "nsys-stream"


def test_a_report_is_exported_once(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", NSYS)
    steps: list[tuple[int, int]] = []
    trace = read(desk.report, lambda done, total: steps.append((done, total)))
    assert trace.tables.activities.height == 1
    assert trace.meta.source == str(desk.report)
    assert trace.meta.bytes_total == len(REPORT)
    assert steps[:4] == [(0, 132), (1, 132), (66, 132), (132, 132)]
    assert read(desk.report).tables.activities.height == 1
    assert desk.runs == ["nsys"]
    assert [file.suffix for file in cache_folder("nsys").iterdir()] == [".sqlite"]


def test_a_report_that_changed_is_exported_again_and_the_old_export_deleted(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", NSYS)
    read(desk.report)
    desk.report.write_bytes(REPORT + b"more")
    read(desk.report)
    assert desk.runs == ["nsys", "nsys"]
    assert len(list(cache_folder("nsys").iterdir())) == 1


def test_an_export_that_was_damaged_is_made_again(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", NSYS)
    read(desk.report)
    (kept,) = cache_folder("nsys").iterdir()
    os.truncate(kept, 5000)
    assert read(desk.report).tables.activities.height == 1
    assert desk.runs == ["nsys", "nsys"]


def test_a_stream_is_imported_by_what_lies_beside_nsys(desk: Desk, tmp_path: Path) -> None:
    stream = tmp_path / "a.qdstrm"
    stream.write_bytes(STREAM)
    desk.install(desk.bin, "nsys", NSYS)
    message = desk.refused(stream, MissingDependencyError)
    assert f"'QdstrmImporter --input-file {stream}'" in message
    desk.install(desk.host, "QdstrmImporter", IMPORTER)
    trace = read(stream)
    assert trace.tables.activities.height == 1
    assert trace.meta.source == str(stream)
    assert desk.runs == ["importer", "nsys"]


def test_without_nsys_the_error_names_the_command(desk: Desk) -> None:
    message = desk.refused(desk.report, MissingDependencyError)
    assert shlex.join(["nsys", "export", "--type", "sqlite", str(desk.report)]) in message


def test_the_last_lines_of_nsys_are_in_the_error(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", BROKEN)
    assert "no such section" in desk.refused(desk.report, MissingDependencyError)
    assert list(cache_folder("nsys").iterdir()) == []


def test_stdout_and_stderr_of_nsys_are_in_the_error(desk: Desk) -> None:
    desk.install(
        desk.bin,
        "nsys",
        "#!{python}\nimport sys\nprint('out')\nsys.stdout.flush()\n"
        "sys.stderr.write('RuntimeException: wrong section\\nwhat: bad cast\\n')\nsys.exit(1)\n",
    )
    message = desk.refused(desk.report, MissingDependencyError)
    assert "(exit status 1; out; RuntimeException: wrong section; what: bad cast)" in message


def test_a_program_that_writes_no_file(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", "#!{python}\nprint('License expired')\n")
    message = desk.refused(desk.report, MissingDependencyError)
    assert "no file written; License expired" in message


def test_a_program_that_cannot_be_run(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", "#!/no/such/interpreter\n")
    assert "cannot be run" in desk.refused(desk.report, MissingDependencyError)


def test_a_cache_that_cannot_be_written(desk: Desk, tmp_path: Path) -> None:
    desk.install(desk.bin, "nsys", NSYS)
    (tmp_path / "cache").write_text("in the way")
    assert "XDG_CACHE_HOME" in desk.refused(desk.report, CannotWriteError)


def test_a_listener_that_gives_up_leaves_nothing(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", NSYS)

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(desk.report, stop)
    assert list(cache_folder("nsys").iterdir()) == []


def test_the_cache_folder_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder("nsys") == Path.home() / ".cache" / "traceana" / "nsys"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder("nsys") == Path.home() / ".cache" / "traceana" / "nsys"


@pytest.mark.skipif(REAL is None, reason="no nsys")
def test_a_report_of_a_real_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = ["--trace=osrt", "--sample=none", "--cpuctxsw=none", f"--output={tmp_path / 'a'}"]
    program = [sys.executable, "-c", "import time; time.sleep(0.01)"]
    recorded = subprocess.run(
        [str(REAL), "profile", *options, *program], capture_output=True, check=False
    )
    report = tmp_path / "a.nsys-rep"
    if recorded.returncode or not report.is_file():
        pytest.skip("this nsys records nothing here")
    assert detect(report).name == "nsys-report"
    trace = read(report, silent)
    assert trace.meta.format == "nsys"
    assert trace.meta.events == trace.tables.ranges.height > 0
    assert (trace.tables.ranges["kind"] == "osrt").any()
    os.truncate(report, report.stat().st_size // 2)
    with pytest.raises(MissingDependencyError, match="cannot read"):
        read(report)


HALF = """#!{python}
import sys
whole = open({export!r}, "rb").read()
open(sys.argv[5], "wb").write(whole[: len(whole) // 2])
"""


def test_an_export_that_nsys_cut_short_names_the_report_and_the_cache(desk: Desk) -> None:
    desk.install(desk.bin, "nsys", HALF)
    message = desk.refused(desk.report, CannotWriteError)
    assert str(desk.report) in message
    assert str(cache_folder("nsys")) in message
    assert "XDG_CACHE_HOME" in message
    assert ".sqlite" not in message
    assert list(cache_folder("nsys").iterdir()) == []
    desk.install(desk.bin, "nsys", NSYS)
    assert read(desk.report).tables.activities.height == 1


def test_nsys_that_fails_on_a_full_disk_is_no_fault_of_the_report(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.install(desk.bin, "nsys", BROKEN)
    usage = shutil.disk_usage(desk.report.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4096))
    message = desk.refused(desk.report, CannotWriteError)
    assert "(0.0 GB free)" in message
    assert "XDG_CACHE_HOME" in message
