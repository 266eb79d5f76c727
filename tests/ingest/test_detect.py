"""Files of other formats are refused before a reader opens them, without blocking."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traceana.errors import IsDirectoryError, NotATraceError, UnknownFormatError, UnreadableError
from traceana.ingest.detect import detect
from traceana.ingest.ranks import find


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableError, match="is a pipe or a device, not a file"):
        detect(tmp_path / "pipe")
    with pytest.raises(UnreadableError, match="is a pipe or a device, not a file"):
        detect(Path(os.devnull))


def test_a_pipe_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IsDirectoryError):
        find(tmp_path)
    trace = tmp_path / "a.json"
    trace.write_text('{"traceEvents": []}')
    assert find(tmp_path).files == [trace]


@pytest.mark.parametrize("text", ['"text, \\" and more"', "12.5e3", " true ", "null\n"])
def test_a_value_alone_is_json_and_no_trace(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(NotATraceError):
        detect(tmp_path / "a")


@pytest.mark.parametrize("text", ['"ID","Kernel Name"\n', "1,2\n3,4\n", "nullified", "12 monkeys"])
def test_what_only_begins_like_a_value_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UnknownFormatError):
        detect(tmp_path / "a")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"data":["QnxKernelTrace","GpuMetrics"]}\n{"Type":27,"CommEvent":{}}\n'),
        ("json", '{"Type":48,"CudaEvent":{"startNs":"5"}}\n'),
        ("text", 'data: "QnxKernelTrace"\ndata: "GpuMetrics"\n'),
        ("text", "Type: 27\nCommEvent_ {\n  Timestamp: -5\n}\n"),
    ],
)
def test_other_exports_of_nsys_are_answered_with_the_one_to_make(
    tmp_path: Path, kind: str, text: str
) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UnknownFormatError, match=rf"of type {kind}, .* --type sqlite"):
        detect(tmp_path / "a")
