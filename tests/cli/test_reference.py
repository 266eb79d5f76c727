"""docs/cli.md has every command, option and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main

from traceana.cli.app import app
from traceana.cli.reference import reference
from traceana.errors import ExitCode

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_reference_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == reference(), (
        "run `python -m traceana.cli.reference > docs/cli.md`"
    )


def test_every_command_option_and_code_is_in_it() -> None:
    text = DOCS.read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        section = text.split(f"## {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            for option in parameter.opts:
                assert option in section or parameter.metavar in section
            assert parameter.help, f"{name} {parameter.name} has no help"
    for code in ExitCode:
        assert f"| {code.value} |" in text


@pytest.mark.parametrize("name", ["report", "info", "kernels", "layers", "transfers"])
def test_commands_that_print_a_table_share_one_set_of_options(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    shared = {"format", "output", "force", "limit", "sort", "step", "device", "strict", "rules"}
    assert shared <= {parameter.name for parameter in command.params}
