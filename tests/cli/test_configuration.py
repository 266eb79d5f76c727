"""Defaults of options by environment, project and user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Run
from traceana.errors import ExitCode


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a project; the current folder is one in it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "traceana").mkdir(parents=True)
    (tmp_path / "project" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "inner")
    return tmp_path / "project"


def of_project(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.traceana]\n{text}\n")


def of_user(project: Path, text: str) -> None:
    (project.parent / "config" / "traceana" / "config.toml").write_text(f"{text}\n")


def test_the_command_line_comes_first_then_environment_project_and_user(
    run: Run, bundle: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_user(project, 'format = "md"')
    assert run("kernels", bundle).stdout.startswith("- **Table**")
    of_project(project, 'format = "json"')
    assert json.loads(run("kernels", bundle).stdout)
    monkeypatch.setenv("TRACEANA_FORMAT", "csv")
    assert run("kernels", bundle).stdout.startswith("name,category")
    assert run("kernels", bundle, "-f", "tsv").stdout.startswith("name\tcategory")


def test_the_suffix_of_an_output_wins_over_a_configured_format(
    run: Run, bundle: Path, project: Path, tmp_path: Path
) -> None:
    of_project(project, 'format = "json"')
    assert run("kernels", bundle, "-o", tmp_path / "k.csv").exit_code == ExitCode.OK
    assert (tmp_path / "k.csv").read_text().startswith("name,category")


def test_rules_are_relative_to_their_file(run: Run, bundle: Path, project: Path) -> None:
    of_project(project, 'rules = "kernels.toml"')
    (project / "kernels.toml").write_text("not toml")
    result = run("kernels", bundle)
    assert result.exit_code == ExitCode.INVALID_FILE
    assert str(project / "kernels.toml") in result.stderr


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('fromat = "json"', "fromat is not a setting: did you mean format?"),
        ('output = "x"', "output is not a setting: use one of rules"),
        ("format = 3", "format is not text: write it in quotes"),
        ('format = "parquet"', "format 'parquet' is not one of table, csv"),
        ('color = "red"', "color 'red' is not one of auto, never"),
        ('device_model = " "', "device_model ' ' is empty"),
        ("format", "invalid TOML"),
        ('rules = "../rules.toml"', "leads out of the project"),
        ('rules = "/etc/passwd"', "leads out of the project"),
        ('rules = "linked/rules.toml"', "leads out of the project"),
    ],
)
def test_what_a_project_cannot_set_is_one_line(
    run: Run, bundle: Path, project: Path, text: str, error: str
) -> None:
    (project / "linked").symlink_to(project.parent)
    of_project(project, text)
    result = run("kernels", bundle)
    assert result.exit_code == ExitCode.INVALID_FILE
    assert result.stderr.count("\n") == 1
    assert error in result.stderr


def test_doctor_has_what_is_in_effect_and_what_is_wrong(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_project(project, 'fromat = "json"')
    of_user(project, 'device_model = "Tesla T4"')
    monkeypatch.setenv("TRACEANA_COLOR", "never")
    result = run("doctor", "-f", "json")
    assert result.exit_code == ExitCode.OK
    facts = {row["fact"]: row["value"] for row in json.loads(result.stdout)["rows"]}
    assert facts["configuration 1"] == "environment: color = never"
    assert "did you mean format?" in facts["configuration 2"]
    assert facts["configuration 3"].endswith("config.toml: device_model = Tesla T4")


def test_a_project_of_another_tool_is_not_parsed(run: Run, bundle: Path, project: Path) -> None:
    (project / "pyproject.toml").write_text("not toml")
    assert run("kernels", bundle).exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["--rule", "host_bund"], "host_bound"),
        (["--fail-on", "pagable_copies"], "pageable_copies"),
        (["--max", "idel=5%"], "idle"),
    ],
)
def test_names_that_are_mistyped_have_a_suggestion(
    run: Run, bundle: Path, words: list[str], near: str
) -> None:
    assert f"(did you mean {near}?)" in run("advise", bundle, *words).stderr
