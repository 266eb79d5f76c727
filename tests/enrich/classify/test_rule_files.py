"""A user's rule file: in front of ours, or refused with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceana.enrich.classify import classify_names, explain, load_rules, rules_in_use
from traceana.errors import ExitCode, InvalidInputError, NotFoundError

GOOD = """
[[rule]]
id = "mine.sgemm"
reason = "our own name for it"
head = '^volta_sgemm'
category = "conv"
algorithm = "direct"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_user_rules_come_first(tmp_path: Path) -> None:
    rules = load_rules(write(tmp_path, GOOD))
    row = classify_names(["volta_sgemm_128x64_nn"], rules).row(0, named=True)
    assert (row["rule"], row["algorithm"], row["family"]) == ("mine.sgemm", "direct", "direct")
    found = explain("volta_sgemm_128x64_nn", rules)
    assert found.file.endswith("mine.toml")
    assert "cublas.gemm_arch" in found.also_matched
    assert classify_names(["volta_sgemm_128x64_nn"])["rule"][0] == "cublas.gemm_arch"


def rule(**changes: str) -> str:
    lines = {
        "id": '"mine.x"',
        "reason": '"because"',
        "head": "'x'",
        "category": '"gemm"',
        **changes,
    }
    return "\n[[rule]]\n" + "\n".join(f"{key} = {value}" for key, value in lines.items() if value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rule", "not valid TOML"),
        ("rules = 1", "unknown key 'rules'"),
        ("rule = 3", r"\[\[rule\]\]"),
        (rule(head="'('"), "mine.x: head: invalid pattern: unclosed group$"),
        (rule(head="'(?=look)'"), "mine.x: head: invalid pattern: look-around.* not supported$"),
        (rule(head=r"'(a)\1'"), "mine.x: head: invalid pattern: backreferences are not supported$"),
        (rule(head="'a{9999}{9999}'"), "mine.x: head: invalid pattern: Compiled regex exceeds"),
        (rule(head="3"), "head must be text"),
        (rule(head=""), "needs a pattern"),
        (rule(category='"convolution"'), "category cannot be 'convolution'; one of conv,"),
        (rule(category=""), "needs category"),
        (rule(reason=""), "needs reason"),
        (rule(algorithm='"fft"'), "other categories must not have one"),
        (rule(category='"conv"'), "conv requires an algorithm"),
        (rule(precision='"fp3"'), "precision cannot be 'fp3'"),
        (rule(batched='"yes"'), "batched must be true or false"),
        (rule(family='"fft"'), "unknown key 'family'"),
        (rule(colour='"red"'), "unknown key 'colour'"),
        (rule(id='"cublas.gemm_arch"'), "is already used in assembled.toml"),
        (rule() + rule(), "'mine.x' is already used"),
        (
            "[[attribute]]\ncolumn = 'category'\npattern = 'x'\nvalue = 'gemm'",
            "cannot set column 'category'",
        ),
        ("[[attribute]]\ncolumn = 'tile'\npattern = '['\nvalue = 'x'", "pattern: invalid pattern"),
        ("[[attribute]]\ncolumn = 'tile'\npattern = 'x'", "needs value"),
        (
            "[[attribute]]\ncolumn = 'tile'\npattern = 'x'\nvalue = 'x'\npart = 'tail'",
            "name or head, not 'tail'",
        ),
    ],
)
def test_bad_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidInputError, match=problem) as caught:
        load_rules(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert caught.value.exit_code == ExitCode.INVALID_FILE


def test_message_gives_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + rule(head="'['"))
    line = path.read_text(encoding="utf-8").splitlines().index("head = '['") + 1
    with pytest.raises(InvalidInputError, match=rf"mine\.toml:{line}: rule mine\.x"):
        load_rules(path)
    path = write(tmp_path, GOOD + rule(category=""))
    line = path.read_text(encoding="utf-8").count("\n", 0, len(GOOD)) + 2
    with pytest.raises(
        InvalidInputError, match=rf"mine\.toml:{line}: rule mine\.x: needs category"
    ):
        load_rules(path)


def test_files_come_in_their_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(rule(id='"first.x"', head="'^x$'"), encoding="utf-8")
    second.write_text(rule(id='"second.x"', head="'^[xy]$'"), encoding="utf-8")
    classes = classify_names(["x", "y"], load_rules(first, second))
    assert classes["rule"].to_list() == ["first.x", "second.x"]


def test_the_file_in_the_configuration_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert rules_in_use(None) is None
    (tmp_path / "traceana").mkdir()
    file = tmp_path / "traceana" / "rules.toml"
    file.write_text(rule(id='"home.x"', head="'^[xy]$'"), encoding="utf-8")
    given = tmp_path / "given.toml"
    given.write_text(rule(id='"given.x"', head="'^x$'"), encoding="utf-8")
    assert classify_names(["x"], rules_in_use(None))["rule"].item() == "home.x"
    classes = classify_names(["x", "y"], rules_in_use(given))
    assert classes["rule"].to_list() == ["given.x", "home.x"]
    # A path that is not absolute is no directory of XDG's: the home's is meant.
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    assert rules_in_use(None) is None
    (tmp_path / "nobody" / ".config").mkdir(parents=True)
    (tmp_path / "traceana").rename(tmp_path / "nobody" / ".config" / "traceana")
    assert classify_names(["x"], rules_in_use(None))["rule"].item() == "home.x"


def test_a_bad_file_in_the_configuration_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "traceana").mkdir()
    file = tmp_path / "traceana" / "rules.toml"
    file.write_text(rule(head="'('"), encoding="utf-8")
    with pytest.raises(
        InvalidInputError, match=r"traceana/rules\.toml:5: rule mine\.x: head: invalid"
    ):
        rules_in_use(None)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        load_rules(tmp_path / "none.toml")


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="give a UTF-8 TOML file"):
        load_rules(path)
