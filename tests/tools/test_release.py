"""A release is refused from an unclean tree; version, changelog and tag are made in a clone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import traceana
from tools.release import (
    ROOT,
    RefusedError,
    identity,
    prepare,
    publishing,
    refuse_unclean,
    run,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a small repository with a version, a changelog and a fragment."""
    home = tmp_path / "src" / "traceana"
    home.mkdir(parents=True)
    (home / "version.py").write_text('__version__ = "0.1.0"\n')
    fragments = tmp_path / "changelog.d"
    fragments.mkdir()
    (fragments / "+new.added.md").write_text("Something new.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n<!-- towncrier: next release -->\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "CITATION.cff").write_text("title: x\nversion: 0.1.0\n")
    (tmp_path / "docs").mkdir()
    manual = '.TH TRACEANA 1 "" "traceana 0.1.0" "User Commands"\n.SH NAME\n'
    (tmp_path / "docs" / "traceana.1").write_text(manual)
    run("git", "init", "--quiet", cwd=tmp_path)
    run("git", "config", "user.name", "A", cwd=tmp_path)
    run("git", "config", "user.email", "a@example.org", cwd=tmp_path)
    run("git", "add", "--all", cwd=tmp_path)
    run("git", "commit", "--quiet", "--message", "Begin", cwd=tmp_path)
    return tmp_path


def test_version_and_changelog_are_committed_and_tagged(repository: Path) -> None:
    prepare(repository, "1.2.3")
    assert '__version__ = "1.2.3"' in run(
        "git", "show", "v1.2.3:src/traceana/version.py", cwd=repository
    )
    assert "version: 1.2.3" in (repository / "CITATION.cff").read_text()
    manual = (repository / "docs" / "traceana.1").read_text()
    assert manual.startswith('.TH TRACEANA 1 "" "traceana 1.2.3" "User Commands"\n')
    changes = (repository / "CHANGELOG.md").read_text()
    assert "## 1.2.3" in changes and "Something new." in changes
    assert list((repository / "changelog.d").glob("*.md")) == []
    assert run("git", "status", "--porcelain", cwd=repository) == ""


def test_a_changelog_that_was_written_by_hand_gets_the_date(repository: Path) -> None:
    log = repository / "CHANGELOG.md"
    log.write_text(log.read_text() + "\n## 1.2.3\n\nBy hand.\n")
    prepare(repository, "1.2.3")
    assert re.search(r"\n## 1\.2\.3 \(\d{4}-\d\d-\d\d\)\n\nBy hand\.\n", log.read_text())
    assert (repository / "changelog.d" / "+new.added.md").exists()


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


@pytest.fixture
def without_identity(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of which git knows no user."""
    for name in ("user.name", "user.email"):
        run("git", "config", "--unset", name, cwd=repository)
    for variable in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "EMAIL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    return repository


def test_the_identity_is_that_of_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL"):
        monkeypatch.delenv(variable, raising=False)
    assert identity(repository) == {"user.name": "A", "user.email": "a@example.org"}


def test_without_an_identity_the_error_has_the_next_step(without_identity: Path) -> None:
    with pytest.raises(RefusedError) as error:
        identity(without_identity)
    expected = "git has no user.name: run git config user.name VALUE, or set GIT_AUTHOR_NAME"
    assert str(error.value) == expected


def test_the_identity_of_the_environment(
    without_identity: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "B")
    with pytest.raises(RefusedError, match=r"git has no user\.email: .* GIT_AUTHOR_EMAIL$"):
        identity(without_identity)
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "b@example.org")
    assert identity(without_identity) == {"user.name": "B", "user.email": "b@example.org"}


def test_only_what_pypi_accepts_is_published() -> None:
    pure, sdist = "traceana-1.2.3-py3-none-any.whl", "traceana-1.2.3.tar.gz"
    mac = "traceana-1.2.3-cp311-abi3-macosx_11_0_arm64.whl"
    linux = "traceana-1.2.3-cp311-abi3-linux_x86_64.whl"
    shown = publishing("1.2.3", [linux, mac, pure, sdist])
    assert f"twine upload dist/{mac} dist/{pure} dist/{sdist}\n" in shown
    assert shown.endswith(
        f"PyPI refuses dist/{linux} with this tag: repair it first (auditwheel repair)"
    )
    assert "auditwheel" not in publishing("1.2.3", [pure, sdist])
