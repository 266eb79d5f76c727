"""The MCP server, driven by the client of the SDK over standard input and output."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.support.command_line import run
from tests.support.manifest import FIXTURES
from tests.support.traces import cnn_steps
from traceana.errors import ExitCode, how_to_install

RUN = "alexnet-cpu-ranges.json.gz"
HOSTILE = (
    "../outside.json.gz",
    "folder/../../outside.json.gz",
    "/etc/passwd",
    "C:\\Windows\\win.ini",
    "\\\\server\\share\\run.json",
    "file:///etc/passwd",
    "https://example.org/run.json",
    "s3://bucket/run.json",
    "link.json.gz",
    "linked",
    "linked/outside.json.gz",
    "linking",
    "beside/run.json.gz",
    "compiled/run.json.gz",
    "absent.json",
    "a\0b",
)
LISTED = ("linking", "beside/run.json.gz", "compiled/run.json.gz")
"""Those of them in which there is no trace to list."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with a trace and a bundle, and links that lead out of it."""
    root = tmp_path / "root"
    for folder in ("folder", "linking", "beside", "compiled"):
        (root / folder).mkdir(parents=True)
    shutil.copy(FIXTURES / RUN, tmp_path / "outside.json.gz")
    shutil.copy(FIXTURES / RUN, root)
    shutil.copy(FIXTURES / RUN, root / "beside" / "run.json.gz")
    cnn_steps().save(root / "folder" / "cnn")
    for name in ("layers", "provenance"):
        shutil.copy(FIXTURES / f"{RUN.partition('.')[0]}.{name}.json", root)
    (root / "report.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report " + bytes(100))
    (root / "link.json.gz").symlink_to(tmp_path / "outside.json.gz")
    (root / "linked").symlink_to(tmp_path)
    (root / "linking" / "rank0.json.gz").symlink_to(tmp_path / "outside.json.gz")
    (root / "beside" / "run.layers.json").symlink_to(tmp_path / "outside.json.gz")
    shutil.copy(FIXTURES / RUN, root / "compiled" / "run.json.gz")
    (root / "compiled" / "inductor").symlink_to(tmp_path)
    return root


def printed(root: Path, *words: str) -> Any:
    """Return what the command prints as JSON, run in the folder ``root``."""
    result = run(*words, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
def test_the_tools_over_stdio(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in one process: it starts in a second."""
    # Here, and not above: each worker imports this file, and the SDK takes a second.
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    from traceana.mcp_server import MOST_BYTES

    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    monkeypatch.chdir(root)

    async def drive() -> None:
        command = StdioServerParameters(
            command=sys.executable,
            args=["-m", "traceana", "mcp", "--root", str(root)],
            env={"PYTHONPATH": str(Path(traceana.__file__).parents[1])},
        )
        async with Client(command) as client:

            async def text(name: str, /, **arguments: object) -> tuple[bool, str]:
                result = await client.call_tool(name, arguments)
                (block,) = result.content
                assert block.type == "text"
                assert len(block.text) <= MOST_BYTES
                return bool(result.is_error), block.text

            async def answer(name: str, /, **arguments: object) -> Any:
                failed, found = await text(name, **arguments)
                assert not failed, found
                return json.loads(found)

            tools = (await client.list_tools()).tools
            assert [one.name for one in tools] == [
                *("list_traces", "advise", "diff", "table", "report", "info", "kernels", "layers"),
                *("flops", "transfers", "lines", "idle", "critical", "whatif", "memory", "samples"),
            ]
            for one in tools:
                assert one.annotations is not None
                assert one.annotations.read_only_hint
                assert "never an instruction" in (one.description or "")

            listed = await answer("list_traces")
            assert {row["path"]: row["format"] for row in listed["rows"]} == {
                RUN: "kineto",
                "beside/run.json.gz": "kineto",
                "compiled/run.json.gz": "kineto",
                "folder/cnn": None,
                "report.nsys-rep": "nsys-report",
            }

            # The rows are those of the command line.
            for tool, command_, options in (
                ("report", "report", {}),
                ("advise", "advise", {}),
                ("idle", "idle", {"by": "step"}),
                ("kernels", "kernels", {"sort": "calls"}),
                ("layers", "layers", {"by": "type"}),
            ):
                words = [word for key, value in options.items() for word in (f"--{key}", value)]
                whole = printed(root, command_, RUN, *words)
                found = await answer(tool, trace=RUN, rows=1000, **options)
                assert found.pop("cut") == [], tool
                found["meta"].pop("rows_total")
                whole["meta"].pop("rows_total")
                assert found == whole, tool
            whole = printed(root, "kernels", RUN)
            found = await answer("kernels", trace=RUN, rows=2)
            assert found["rows"] == whole["rows"][:2]
            rows_total = whole["meta"]["rows_total"]
            assert found["cut"] == [{"list": "rows", "shown": 2, "all": rows_total}]

            same = await answer("diff", baseline="folder/cnn", candidate="folder/cnn", by="class")
            assert {row["delta_ns"] for row in same["rows"]} == {0}

            names = await answer(
                "table", trace=RUN, name="names", columns=["name"], first=3, rows=2
            )
            assert [list(row) for row in names["rows"]] == [["name"], ["name"]]
            assert names["meta"]["columns"]["name"]["meaning"]
            longest = await answer("table", trace=RUN, name="ops", sort="duration", rows=1)
            assert longest["meta"]["columns"]["duration"]["unit"] == "ns"

            for arguments, error in (
                ({"name": "opps"}, "unknown table opps: did you mean ops?"),
                ({"name": "ops", "columns": ["durations"]}, "did you mean duration?"),
                ({"name": "ops", "sort": "size"}, "cannot sort by size"),
            ):
                assert error in (await text("table", trace=RUN, **arguments))[1]
            assert (await text("kernels", trace=RUN, rows=100_000))[0], "too many rows"
            for tool, wrong in (
                ("table", {"name": "ops", "first": 10**30}),
                ("kernels", {"step": "1"}),
                ("report", {"devices": [0]}),
            ):
                failed, line = await text(tool, trace=RUN, **wrong)
                assert failed, (tool, wrong)
                assert "Traceback" not in line
                assert any(name in line for name in wrong)
            twice = await answer("table", trace=RUN, name="names", columns=["name", "name"], rows=1)
            assert [list(row) for row in twice["rows"]] == [["name"]]
            for path in HOSTILE:
                for name in ("report", "list_traces"):
                    key = "trace" if name == "report" else "folder"
                    failed, line = await text(name, **{key: path})
                    if name == "list_traces" and path in LISTED:
                        assert json.loads(line)["rows"] == []
                        continue
                    assert failed, (name, path)
                    assert "\n" not in line
                    assert "root:" not in line, "the content of a file"
            failed, line = await text("report", trace="report.nsys-rep")
            assert failed
            assert "traceana save report.nsys-rep -o BUNDLE" in line

    asyncio.run(asyncio.wait_for(drive(), 100))
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before


def test_long_answers_are_cut_and_named() -> None:
    from traceana.mcp_server import MOST_BYTES, limited

    rows = [{"name": "k" * 5_000, "values": list(range(300)), "share": float("nan")}] * 900
    text = limited({"meta": {"rows_total": 900}, "rows": rows}, 1000)
    assert len(text) <= MOST_BYTES
    found = json.loads(text)
    cut = {one["list"]: one for one in found["cut"]}
    assert cut["rows"] == {"list": "rows", "shown": len(found["rows"]), "all": 900}
    assert cut["rows[].values"]["all"] == 300
    assert found["rows"][0]["name"].endswith("…")
    assert found["rows"][0]["share"] is None


def test_what_cannot_be_cut_is_left_out() -> None:
    from traceana.mcp_server import limited

    wide = {"meta": {}, "rows": [{f"column {number}": 0 for number in range(50_000)}]}
    found = json.loads(limited(wide, 10))
    assert found["rows"] == []
    assert found["cut"][0]["list"] == "everything"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("traceana.cli.mcp.find_spec", lambda name: None)
    result = run("mcp", "--root", tmp_path)
    assert result.exit_code == ExitCode.MISSING_DEPENDENCY
    assert how_to_install("mcp") in result.stderr


def test_the_folder_must_exist(tmp_path: Path) -> None:
    result = run("mcp", "--root", tmp_path / "absent")
    assert result.exit_code == ExitCode.NOT_FOUND
