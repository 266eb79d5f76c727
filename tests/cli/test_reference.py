"""docs/cli.md has every command, option and exit code."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from traceana.cli import main
from traceana.cli.reference import app, exit_codes, man_page, reference
from traceana.errors import ExitCode, NotFoundError, UsageError

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_reference_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == reference(), (
        "run `python -m traceana.cli.reference > docs/cli.md`"
    )


SHARED = "Also the options of several commands"


def test_every_command_option_and_code_is_in_it() -> None:
    text = DOCS.read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shared = text.split("## Options of several commands\n")[1].split("\n## ")[0]
    for name, command in commands.items():
        section = text.split(f"## {name}\n")[1].split("\n## ")[0]
        own, _, without = section.partition(SHARED)
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name} has no help"
            named = [f"`{option}`" for option in parameter.opts]
            if parameter.param_type_name == "argument":
                named = [f"`{parameter.metavar}`"]
            for option in named:
                in_shared = SHARED in section and option in shared and option not in without
                assert option in own or in_shared, f"{name} {option}"


def test_no_option_has_many_equal_rows() -> None:
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    rows = Counter(line for line in lines if line.startswith("| `-"))
    assert max(rows.values()) <= 6


def test_the_exit_codes_are_up_to_date() -> None:
    text = (DOCS.parent / "exit-codes.md").read_text(encoding="utf-8")
    assert text == exit_codes(), (
        "run `python -m traceana.cli.reference exit-codes > docs/exit-codes.md`"
    )
    for code in ExitCode:
        assert f"| {code.value} | `{code.name}` |" in text
    for error in (NotFoundError, UsageError):
        assert f"`{error.__name__}`" in text


def test_the_man_page_is_up_to_date() -> None:
    text = (DOCS.parent / "traceana.1").read_text(encoding="utf-8")
    assert text == man_page(), "run `python -m traceana.cli.reference man > docs/traceana.1`"


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_man_page_is_valid_roff() -> None:
    words = ["groff", "-man", "-Tutf8", "-ww", "-K", "utf8", str(DOCS.parent / "traceana.1")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "--fail-if-slower" in done.stdout


@pytest.mark.parametrize("name", ["report", "info", "kernels", "layers", "transfers"])
def test_commands_that_print_a_table_share_one_set_of_options(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    shared = {"format", "output", "force", "limit", "sort", "step", "device", "strict", "rules"}
    assert shared <= {parameter.name for parameter in command.params}


def test_help_lists_the_commands_as_the_complete_application_does() -> None:
    listed, complete = (
        CliRunner().invoke(main.application(listed=one), ["--help"]).stdout for one in (True, False)
    )
    assert listed == complete
