"""A release is refused from an unclean tree; version, changelog and tag are made in a clone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import traceana
from tools.release import ROOT, RefusedError, prepare, refuse_unclean, run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a small repository with a version, a changelog and a fragment."""
    home = tmp_path / "src" / "traceana"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text('__version__ = "0.1.0"\n')
    fragments = tmp_path / "changelog.d"
    fragments.mkdir()
    (fragments / "+new.added.md").write_text("Something new.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n<!-- towncrier: next release -->\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "CITATION.cff").write_text("title: x\nversion: 0.1.0\n")
    run("git", "init", "--quiet", cwd=tmp_path)
    run("git", "config", "user.name", "A", cwd=tmp_path)
    run("git", "config", "user.email", "a@example.org", cwd=tmp_path)
    run("git", "add", "--all", cwd=tmp_path)
    run("git", "commit", "--quiet", "--message", "Begin", cwd=tmp_path)
    return tmp_path


def test_version_and_changelog_are_committed_and_tagged(repository: Path) -> None:
    prepare(repository, "1.2.3")
    assert '__version__ = "1.2.3"' in run(
        "git", "show", "v1.2.3:src/traceana/__init__.py", cwd=repository
    )
    assert "version: 1.2.3" in (repository / "CITATION.cff").read_text()
    changes = (repository / "CHANGELOG.md").read_text()
    assert "## 1.2.3" in changes and "Something new." in changes
    assert list((repository / "changelog.d").glob("*.md")) == []
    assert run("git", "status", "--porcelain", cwd=repository) == ""


def test_the_citation_has_the_version() -> None:
    cited = re.findall(r"(?m)^version: (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited == [traceana.__version__]


def test_refusals(repository: Path) -> None:
    refuse_unclean(repository, "1.2.3")
    with pytest.raises(RefusedError, match="not a version"):
        refuse_unclean(repository, "next")
    run("git", "tag", "v1.2.3", cwd=repository)
    with pytest.raises(RefusedError, match="exists"):
        refuse_unclean(repository, "1.2.3")
    (repository / "new").write_text("")
    with pytest.raises(RefusedError, match="has changes"):
        refuse_unclean(repository, "1.2.4")


def test_a_failing_command_is_an_error_with_its_output() -> None:
    with pytest.raises(RefusedError, match="exit code"):
        run("git", "no-such-command")
