"""A console block is run and compared; omitted lines stay omitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import consoles
from tools.consoles import BadBlockError, Block, blocks, main


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a page that is the only one, in a repository that is the only one."""
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "fixtures" / "three.txt").write_text("one\ntwo\nthree\n")
    found = tmp_path / "page.md"
    monkeypatch.setattr(consoles, "ROOT", tmp_path)
    monkeypatch.setattr(consoles, "TRACES", tmp_path / "traces")
    monkeypatch.setattr(consoles, "PAGES", (found,))
    return found


def write(page: Path, body: str, mark: str = "") -> None:
    page.write_text(f"Text.\n\n{mark}```console\n{body}```\n\nMore.\n", encoding="utf-8")


def test_a_block_that_is_what_is_printed_passes(page: Path) -> None:
    write(page, "$ cat fixtures/three.txt\none\ntwo\nthree\n$ echo done\ndone\n")
    assert main([]) == 0


def test_a_stale_block_fails_and_is_written_anew(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(page, "$ cat fixtures/three.txt\none\nthree\n")
    assert main([]) == 1
    assert "page.md:4" in capsys.readouterr().out
    assert main(["--write"]) == 0
    assert main([]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("Text.") and text.endswith("More.\n")
    assert "one\ntwo\nthree\n```" in text


def test_lines_left_out_stay_out(page: Path) -> None:
    write(page, "$ cat fixtures/three.txt\nONE\n…\nthree\n")
    assert main(["--write"]) == 0
    assert "one\n…\nthree\n" in page.read_text(encoding="utf-8")


def test_a_command_continues_behind_a_backslash(page: Path) -> None:
    write(page, "$ cat \\\n    fixtures/three.txt\nONE\n…\nthree\n")
    assert main(["--write"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "$ cat \\\n    fixtures/three.txt\none\n…\nthree\n" in text
    assert main([]) == 0


def test_a_block_wider_than_the_page_fails(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(page, f"$ printf %0101d 0\n{'0' * 101}\n")
    assert main([]) == 1
    assert "page.md:4: wider than 100 columns" in capsys.readouterr().out


def test_a_recorded_block_is_never_run(page: Path) -> None:
    write(page, "$ false\nanything\n", "<!-- recorded 2026-11-22, a machine with a GPU -->\n")
    assert main([]) == 0


def test_a_block_of_a_trace_runs_where_the_trace_is(page: Path) -> None:
    write(page, "$ cat x.json\nold\n", "<!-- trace kineto/x.json: theirs, MIT -->\n")
    assert main([]) == 0
    trace = page.parent / "traces" / "kineto" / "x.json"
    trace.parent.mkdir(parents=True)
    trace.write_text("new\n")
    assert main([]) == 1


def test_a_block_without_a_command_is_an_error(page: Path) -> None:
    write(page, "output\n")
    (block,) = blocks(page)
    assert isinstance(block, Block)
    with pytest.raises(BadBlockError, match=r"page\.md:4"):
        block.printed()


def test_a_block_of_a_built_trace_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "built", lambda: page.parent / "made")
    (page.parent / "made").mkdir()
    (page.parent / "made" / "x.json").write_text("new\n")
    write(page, "$ cat x.json\nnew\n", "<!-- built x.json: by a tool -->\n")
    assert main([]) == 0
    write(page, "$ cat x.json\nold\n", "<!-- built x.json: by a tool -->\n")
    assert main([]) == 1
