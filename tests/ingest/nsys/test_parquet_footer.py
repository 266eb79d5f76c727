"""Columns of a Parquet file compared with its footer, and the decoder of the footer."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from traceana.ingest.nsys.directory import quiet_panics, read
from traceana.ingest.nsys.parquet_footer import Footer, decoded

pytestmark = pytest.mark.slow

Write = Callable[[pl.DataFrame, Path], Any]
VALUE = 0x1234_5678_9ABC


def _pyarrow(**options: Any) -> Write:
    def write(frame: pl.DataFrame, file: Path) -> None:
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(frame.to_arrow(), file, **options)

    return write


WRITERS: dict[str, Write] = {
    "polars": lambda frame, file: frame.write_parquet(file),
    "polars, no statistics": lambda frame, file: frame.write_parquet(file, statistics=False),
    "polars, row groups": lambda frame, file: frame.write_parquet(file, row_group_size=7),
    "pyarrow": _pyarrow(),
    "pyarrow, no statistics": _pyarrow(write_statistics=False),
    "pyarrow, no dictionaries": _pyarrow(use_dictionary=False, compression="none"),
    "pyarrow, pages of version 2": _pyarrow(data_page_version="2.0", compression="zstd"),
    "pyarrow, row groups": _pyarrow(row_group_size=7),
    "pyarrow, small pages": _pyarrow(data_page_size=64, write_batch_size=4, use_dictionary=False),
    "pyarrow, index of pages": _pyarrow(write_page_index=True, write_page_checksum=True),
}


def damage(folder: Path) -> list[str]:
    ledger = read(folder, lambda done, total: None).tables.ledger
    return ledger.filter(reason="damaged", severity="problem")["detail"].to_list()


def frame(rows: int = 100) -> pl.DataFrame:
    numbers = range(rows)
    return pl.DataFrame(
        {
            "signed": [number - 50 for number in numbers],
            "unsigned": pl.Series([2**64 - 1 - number for number in numbers], dtype=pl.UInt64),
            "small": pl.Series([number % 7 - 3 for number in numbers], dtype=pl.Int8),
            "large": pl.Series([2**32 - 1 - number for number in numbers], dtype=pl.UInt32),
            "nulls": [None if number % 3 else number for number in numbers],
            "first": [number if number < 7 else None for number in numbers],
            "null": pl.Series([None] * rows, dtype=pl.Int64),
            "text": [f"kernel {number}" for number in numbers],
            "float": [number / 3 for number in numbers],
            "flag": [number % 2 == 0 for number in numbers],
            "list": [[number] for number in numbers],
        }
    )


@pytest.mark.parametrize("rows", [0, 1, 100, 3_000])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_no_writer_contradicts_itself(tmp_path: Path, write: Write, rows: int) -> None:
    file = tmp_path / "a.parquet"
    write(frame(rows), file)
    footer = Footer(file)
    footer.check_pages(None)
    assert footer.contradiction(pl.read_parquet(file)) is None


def test_a_changed_number_of_a_page_is_beyond_the_footer(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pl.DataFrame({"start": [5, 6, 7], "end": [VALUE, 8, 9]}).write_parquet(
        file, compression="uncompressed"
    )
    value = VALUE.to_bytes(8, "little")
    # The page is before the footer, which has the number as the maximum.
    file.write_bytes(file.read_bytes().replace(value, b"\0" + value[1:], 1))
    found = pl.read_parquet(file)
    less = VALUE & ~0xFF
    assert found["end"][0] == less
    footer = Footer(file)
    assert footer.contradiction(found) == f"end is 8 to {less}, in the footer 8 to {VALUE}"
    assert footer.contradiction(found.select("start")) is None


def test_what_contradicts_the_footer_is_in_the_ledger(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    file = folder / "PROFILER_OVERHEAD.parquet"
    pl.DataFrame({"start": [5, 6, 7], "end": [VALUE, 8, 9]}).write_parquet(
        file, compression="uncompressed"
    )
    assert damage(folder) == []
    value = VALUE.to_bytes(8, "little")
    file.write_bytes(file.read_bytes().replace(value, b"\0" + value[1:], 1))
    (detail,) = damage(folder)
    assert detail.startswith("PROFILER_OVERHEAD.parquet: end is ")


def test_rows_that_were_not_read_contradict_the_footer(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    whole = pl.DataFrame({"text": ["a", "b", None]})
    whole.write_parquet(file)
    for part in (whole[:2], whole.fill_null("c")):
        assert (Footer(file).contradiction(part) or "").startswith("text has another number of ")


def test_what_pyarrow_refuses_is_refused_or_contradicts_the_footer(tmp_path: Path) -> None:
    """Or it is read as it was: the damage is where nothing is read."""
    pq = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    made = pl.DataFrame({"start": range(50), "end": range(1, 51), "name": [1, 2] * 25})
    WRITERS["pyarrow"](made, file)
    whole = file.read_bytes()
    rng = random.Random(29)
    refused = 0
    for _ in range(600):
        changed = bytearray(whole)
        changed[rng.randrange(4, len(whole) - 8)] = rng.randrange(256)
        file.write_bytes(changed)
        try:
            footer = Footer(file)
            footer.check_pages(None)
            with quiet_panics():
                ours = pl.read_parquet(file.read_bytes())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError):
            continue
        try:
            pq.read_table(file)
        except (OSError, ValueError):
            refused += 1
            assert footer.contradiction(ours) or ours.equals(made)
    assert refused > 0


def test_no_number_of_a_header_aborts_the_process(tmp_path: Path) -> None:
    """A page of -1 values makes the decoder allocate 2 EB: each byte of a file becomes 1."""
    file = tmp_path / "export" / "PROFILER_OVERHEAD.parquet"
    file.parent.mkdir()
    WRITERS["pyarrow, no statistics"](pl.DataFrame({"start": range(50)}), file)
    subprocess.run([sys.executable, "-c", _ONES, str(file)], check=True)


_ONES = """
import sys
from pathlib import Path
from traceana.errors import TraceanaError
from traceana.ingest.nsys.directory import TableDirectory

file = Path(sys.argv[1])
whole = file.read_bytes()
for at in range(4, len(whole) - 8):
    file.write_bytes(whole[:at] + b"\\1" + whole[at + 1 :])
    try:
        TableDirectory(file.parent).records(file.stem)
    except TraceanaError:
        pass
"""


def test_the_footer_is_decoded_as_pyarrow_decodes_it(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    for write in WRITERS.values():
        write(frame(), file)
        whole = file.read_bytes()
        length = int.from_bytes(whole[-8:-4], "little")
        footer, end = decoded(whole[-8 - length : -8])
        theirs = pq.read_metadata(file)
        assert end == length
        assert footer[3] == theirs.num_rows
        for number, group in enumerate(footer[4]):
            for column, chunk in enumerate(group[1]):
                want = theirs.row_group(number).column(column)
                ours = chunk[3]
                assert ".".join(part.decode() for part in ours[3]) == want.path_in_schema
                assert (ours[5], ours[6], ours[7], ours[9], ours.get(11)) == (
                    want.num_values,
                    want.total_uncompressed_size,
                    want.total_compressed_size,
                    want.data_page_offset,
                    want.dictionary_page_offset,
                )


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x15", id="ends in a field"),
        pytest.param(b"\x19" * 100_000, id="lists in lists"),
        pytest.param(b"\x1c" * 100_000, id="structs in structs"),
        pytest.param(b"\x19\xf5\xff\xff\xff\xff\x7f\x00", id="a list of 34 billion"),
        pytest.param(b"\x18\xff\xff\xff\xff\x7f\x00", id="a text of 34 GB"),
        pytest.param(b"\x15" + b"\xff" * 1_000, id="an integer of 7,000 bits"),
        pytest.param(b"\x1b\x01\x55\x02\x02\x00", id="a map"),
        pytest.param(b"\x1f\x00", id="a type that is not defined"),
    ],
)
def test_hostile_structs(data: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(data)


def test_random_bytes_are_a_struct_or_refused() -> None:
    rng = random.Random(7)
    for _ in range(20_000):
        data = rng.randbytes(rng.randrange(1, 40))
        try:
            fields, end = decoded(data)
        except ValueError:
            continue
        assert 0 < end <= len(data)
        assert all(isinstance(number, int) for number in fields)
