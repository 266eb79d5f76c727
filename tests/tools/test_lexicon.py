"""The lexicon is read from a library's constant strings."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from tools.elf import NotAnElfError, constant_strings, sections
from tools.lexicon import is_kernel_name, kernel_names, main

STRINGS = b"\0_Z3fooIiEvT_\0volta_sgemm_128x64_nn\0hello world\0\x01\x02\0"


def elf(rodata: bytes) -> bytes:
    """A minimal ELF image with .rodata and .shstrtab sections."""
    names = b"\0.rodata\0.shstrtab\0"
    header, entry = 64, 64
    rodata_at = header
    names_at = rodata_at + len(rodata)
    table_at = names_at + len(names)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table_at, 0, 64, 0, 0, entry, 3, 2)
    rows = [
        (0, 0, 0, 0, 0, 0),
        (1, 1, 2, 0, rodata_at, len(rodata)),
        (9, 3, 0, 0, names_at, len(names)),
    ]
    table = b"".join(struct.pack("<IIQQQQ", *row).ljust(entry, b"\0") for row in rows)
    return head + rodata + names + table


def test_strings_of_rodata() -> None:
    image = elf(STRINGS)
    assert [section.name for section in sections(image)] == ["", ".rodata", ".shstrtab"]
    assert list(constant_strings(image)) == ["_Z3fooIiEvT_", "volta_sgemm_128x64_nn", "hello world"]


def test_kernel_names() -> None:
    names = kernel_names(elf(STRINGS))
    assert "volta_sgemm_128x64_nn" in names
    assert len(names) == 2
    assert "hello world" not in names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("_ZN5cudnn3fooEv", True),
        ("sm80_xmma_gemm_f16f16", True),
        ("nvjet_hsh_128x64", True),
        ("maxwell is a physicist", False),
        ("hello", False),
    ],
)
def test_is_kernel_name(text: str, expected: bool) -> None:
    assert is_kernel_name(text) is expected


def test_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "toy-1.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/libtoy.so.3", elf(STRINGS))
        archive.writestr("toy/readme.txt", "no library")
    assert main([str(wheel), "-o", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "toy-1.0__libtoy.txt").read_text(encoding="utf-8")
    assert "volta_sgemm_128x64_nn" in text.splitlines()


def test_not_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.so"
    path.write_bytes(b"just text, no ELF header in here")
    assert main([str(path), "-o", str(tmp_path)]) == 1
    assert "ELF" in capsys.readouterr().err


def test_truncated_library() -> None:
    with pytest.raises(NotAnElfError, match="truncated"):
        list(sections(elf(STRINGS)[:70]))
