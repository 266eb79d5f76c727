"""Directories of tables read as the SQLite export of the same report does."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest

import traceana
from tests.readers.nsys.writing import KERNEL, RUNTIME, STRINGS, call, copy, export, kernel, nvtx
from tests.support.manifest import Expected, each
from traceana.errors import CorruptError, UnknownFormatError
from traceana.readers import read
from traceana.readers.detect import detect
from traceana.readers.nsys import directory
from traceana.readers.parquet import quiet_panics
from traceana.trace.schema import TABLES

FIXTURES = sorted((Path(__file__).parents[3] / "fixtures").glob("*nsys*.sqlite"))
Write = Callable[[pl.DataFrame, Path], Any]


def parquet(frame: pl.DataFrame, file: Path) -> None:
    frame.write_parquet(file.with_suffix(".parquet"))


def arrow(frame: pl.DataFrame, file: Path) -> None:
    frame.write_ipc_stream(file.with_suffix(".arrow"))


def converted(source: Path, folder: Path, write: Write) -> Path:
    """Write every table of an SQLite export as nsys does: global ids have no sign there."""
    folder.mkdir()
    uri = f"file:{quote(str(source))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        # Arrow's text is UTF-8, whatever the program wrote.
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            found = connection.execute(f'SELECT * FROM "{name}"')
            columns = [column for column, *_ in found.description]
            frame = pl.DataFrame(
                found.fetchall(), schema=columns, orient="row", infer_schema_length=None
            )
            ids = [
                c for c in frame.columns if c.startswith("global") and frame[c].dtype.is_integer()
            ]
            write(frame.with_columns(pl.col(ids).reinterpret(signed=False)), folder / name)
    return folder


def same(found: Path, want: Path) -> None:
    ours, theirs = read(found), read(want)
    for table in TABLES:
        assert ours.tables[table].equals(theirs.tables[table]), table
    assert ours.meta.events == theirs.meta.events
    assert ours.meta.epoch_ns == theirs.meta.epoch_ns
    assert ours.meta.format_version == theirs.meta.format_version
    assert ours.meta.properties == theirs.meta.properties


@pytest.mark.parametrize("write", [parquet, arrow])
@pytest.mark.parametrize("source", FIXTURES, ids=lambda path: path.name)
def test_a_directory_equals_the_database(tmp_path: Path, source: Path, write: Write) -> None:
    folder = converted(source, tmp_path / "export", write)
    assert detect(folder).name == "nsys-tables"
    same(folder, source)


@pytest.mark.slow
def test_the_directory_is_one_trace_and_no_folder_of_ranks(tmp_path: Path) -> None:
    folder = small(tmp_path)
    assert traceana.open(folder).tables.activities.height == 2000
    assert traceana.open(tmp_path / "a.sqlite").meta.events == traceana.open(folder).meta.events


@pytest.mark.exhaustive(after=1)
@each("nsys-sqlite")
def test_real_device_work_too(want: Expected, tmp_path: Path) -> None:
    same(converted(want.path, tmp_path / "export", parquet), want.path)


def small(tmp_path: Path, write: Write = parquet) -> Path:
    tables = {
        KERNEL: [kernel(i, i + 1, correlationId=i) for i in range(1, 2000)],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [copy(1, 2, 1)],
        RUNTIME: [call(1, 2)],
        "NVTX_EVENTS": [nvtx(1, 2), nvtx(3, 4, text="own", textId=None)],
    }
    return converted(export(tmp_path / "a.sqlite", tables), tmp_path / "export", write)


def test_pages_are_joined_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "PAGE_ROWS", 7)
    same(small(tmp_path), tmp_path / "a.sqlite")


def test_a_table_without_rows(tmp_path: Path) -> None:
    folder = small(tmp_path)
    pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64}).write_parquet(
        folder / "OSRT_API.parquet"
    )
    same(folder, tmp_path / "a.sqlite")


def test_tables_and_columns_that_are_missing(tmp_path: Path) -> None:
    folder = small(tmp_path)
    (folder / "StringIds.parquet").unlink()
    for table in (KERNEL, "NVTX_EVENTS"):
        frame = pl.read_parquet(folder / f"{table}.parquet")
        frame.select("start", "end").write_parquet(folder / f"{table}.parquet")
    trace = read(folder)
    assert trace.tables.activities.height == 2000
    assert trace.tables.ranges.height == 2
    reasons = dict(trace.tables.ledger.select("reason", "count").iter_rows())
    assert (reasons["missing_table"], reasons["unnamed"]) == (1, 1999)


def test_labels_and_other_types_of_numbers(tmp_path: Path) -> None:
    folder = small(tmp_path)
    texts = pl.DataFrame(STRINGS, schema={"id": pl.Float64, "value": pl.Categorical})
    texts.write_parquet(folder / "StringIds.parquet")
    same(folder, tmp_path / "a.sqlite")


def test_progress_rises_to_the_total(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    read(small(tmp_path), lambda done, total: steps.append((done, total)))
    assert steps[0][0] == 0
    assert steps[-1][0] == steps[-1][1] > 0
    assert steps == sorted(steps)


def test_a_directory_of_anything_else(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "NVTX_EVENTS.parquet")
    with pytest.raises(UnknownFormatError):
        read(tmp_path)


@pytest.mark.parametrize("write", [parquet, arrow])
def test_files_that_are_cut_or_garbage(tmp_path: Path, write: Write) -> None:
    folder = small(tmp_path, write)
    (file,) = folder.glob(f"{KERNEL}.*")
    whole = file.read_bytes()
    noise = random.Random(5)
    damages = [b"", whole[: len(whole) // 2], whole[:20], noise.randbytes(5000)]
    for damage in damages:
        file.write_bytes(damage)
        with pytest.raises(CorruptError) as caught:
            read(folder)
        assert file.name in str(caught.value)
        assert "\n" not in str(caught.value)


_FLIP = """
import resource
import sys
from pathlib import Path
from traceana.errors import CorruptError
from traceana.readers import read
file = Path(sys.argv[1])
whole = file.read_bytes()
read(file.parent)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
for at in range(0, len(whole), 5):
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
    try:
        read(file.parent)
    except CorruptError as error:
        assert file.name in str(error)
"""


@pytest.mark.exhaustive
def test_any_flipped_byte_of_a_stream_is_read_or_refused(tmp_path: Path) -> None:
    """In a process with little memory: a decoder that allocates a damaged length aborts there."""
    folder = small(tmp_path, arrow)
    (file,) = folder.glob("StringIds.*")
    subprocess.run([sys.executable, "-c", _FLIP, str(file)], check=True)


@pytest.mark.exhaustive
def test_a_flipped_bit_that_aborts_the_decoder_is_an_error_of_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as one of the length of the bitmap of nulls, which no memory would hold."""
    file = tmp_path / "T.parquet"
    pl.DataFrame({"start": range(50)}).write_parquet(file, compression="uncompressed")
    whole = file.read_bytes()
    tables = directory.TableDirectory(tmp_path)
    errors = set()
    for at in range(4, len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            tables.records("T")
        except CorruptError as error:
            errors.add(str(error))
    assert f"{file} is damaged (it cannot be decoded): export it again" in errors
    assert not any("\n" in error for error in errors)
    file.write_bytes(whole)
    assert tables.count("T") == 50
    assert "memory allocation" not in capfd.readouterr().err


def test_a_panic_of_the_decoder_is_an_error_of_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pa = pytest.importorskip("pyarrow")
    folder = small(tmp_path, arrow)
    file = folder / f"{RUNTIME}.arrow"
    # Two columns of one name make the decoder panic.
    table = pa.ipc.open_stream(file.read_bytes()).read_all()
    names = ["start" if name == "correlationId" else name for name in table.schema.names]
    renamed = table.rename_columns(names)
    with pa.ipc.new_stream(file, renamed.schema) as writer:
        writer.write_table(renamed)
    with pytest.raises(CorruptError) as caught:
        read(folder)
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def _messages(stream: bytes) -> list[int]:
    """Return where each message of an Arrow stream ends."""
    pa = pytest.importorskip("pyarrow")
    ends = [0]
    while (length := int.from_bytes(stream[ends[-1] + 4 : ends[-1] + 8], "little")) > 0:
        body = pa.ipc.read_message(pa.py_buffer(stream[ends[-1] :])).body
        ends.append(ends[-1] + 8 + length + (body.size if body is not None else 0))
    return ends


@pytest.mark.parametrize("lost", [0, 1])
def test_a_stream_cut_between_two_messages_is_in_the_ledger(tmp_path: Path, lost: int) -> None:
    folder = small(tmp_path, arrow)
    file = folder / f"{KERNEL}.arrow"
    whole = file.read_bytes()
    file.write_bytes(whole[: _messages(whole)[-1 - lost]])
    (entry,) = read(folder).tables.ledger.filter(severity="problem", reason="damaged").to_dicts()
    assert entry["detail"].startswith(file.name)


def test_a_stream_behind_a_stream_is_in_the_ledger(tmp_path: Path) -> None:
    folder = small(tmp_path, arrow)
    file = folder / f"{KERNEL}.arrow"
    assert read(folder).tables.ledger.filter(severity="problem").is_empty()
    file.write_bytes(2 * file.read_bytes())
    (entry,) = read(folder).tables.ledger.filter(severity="problem").to_dicts()
    assert entry["reason"] == "damaged"
    assert entry["detail"].startswith(file.name)


def test_streams_that_all_end_without_a_mark_are_whole(tmp_path: Path) -> None:
    folder = small(tmp_path, arrow)
    for file in folder.iterdir():
        whole = file.read_bytes()
        file.write_bytes(whole[: _messages(whole)[-1]])
    assert read(folder).tables.ledger.filter(severity="problem").is_empty()


@pytest.mark.parametrize("column", ["start", "demangledName"])
def test_a_column_of_lists_is_an_error_of_one_line(tmp_path: Path, column: str) -> None:
    folder = small(tmp_path)
    file = folder / f"{KERNEL}.parquet"
    pl.read_parquet(file).with_columns(pl.concat_list(column)).write_parquet(file)
    with pytest.raises(CorruptError) as caught:
        read(folder)
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_of_lists_is_an_error_of_one_line(tmp_path: Path) -> None:
    folder = small(tmp_path)
    file = folder / "StringIds.parquet"
    pl.read_parquet(file).with_columns(pl.concat_list("value")).write_parquet(file)
    with pytest.raises(CorruptError, match=file.name):
        read(folder)


def test_what_is_printed_while_tables_are_decoded_appears(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with quiet_panics():
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
    with pytest.raises(pl.exceptions.PanicException), quiet_panics():
        os.write(2, b"thread panicked\n")
        raise pl.exceptions.PanicException
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_table_that_is_a_folder_counts_as_missing(tmp_path: Path, write: Write) -> None:
    folder = small(tmp_path, write)
    (file,) = folder.glob("NVTX_EVENTS.*")
    file.unlink()
    file.mkdir()
    trace = read(folder)
    assert trace.tables.activities.height == 2000
    missing = trace.tables.ledger.filter(reason="missing_table")
    assert missing["detail"].to_list() == [f"{file.name} is not a file"]
    assert missing["severity"].to_list() == ["problem"]


def test_a_description_that_is_a_folder(tmp_path: Path) -> None:
    folder = small(tmp_path)
    file = folder / "META_DATA_EXPORT.parquet"
    file.unlink()
    file.mkdir()
    trace = read(folder)
    assert trace.tables.activities.height == 2000
    assert trace.tables.ledger.filter(reason="missing_table").height == 1


def test_a_limit_of_the_shell_stays(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from traceana.readers import read;"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30));"
        "print(read(Path(sys.argv[1])).tables.activities.height)"
    )
    words = [sys.executable, "-c", code, str(small(tmp_path))]
    assert subprocess.run(words, check=True, capture_output=True).stdout == b"2000\n"
