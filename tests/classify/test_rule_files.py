"""A user's rule file: in front of ours, or refused with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceana.classify import classify_names, explain, load_rules
from traceana.errors import BadRulesError, ExitCode, NotFoundError

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
        (rule(head="'('"), "mine.x: head is no pattern"),
        (rule(head="'(?=look)'"), "mine.x: head is no pattern"),
        (rule(head=r"'(a)\1'"), "mine.x: head is no pattern"),
        (rule(head="3"), "head must be text"),
        (rule(head=""), "needs a pattern"),
        (rule(category='"convolution"'), "category cannot be 'convolution'; one of conv,"),
        (rule(category=""), "needs category"),
        (rule(reason=""), "needs reason"),
        (rule(algorithm='"fft"'), "algorithm belongs to category conv"),
        (rule(category='"conv"'), "conv needs one"),
        (rule(precision='"fp3"'), "precision cannot be 'fp3'"),
        (rule(batched='"yes"'), "batched is true or false"),
        (rule(family='"fft"'), "unknown key 'family'"),
        (rule(colour='"red"'), "unknown key 'colour'"),
        (rule(examples="[3]"), "an example is a name"),
        (rule(examples='[{ name = "x", colour = "red" }]'), "unknown column 'colour'"),
        (rule(id='"cublas.gemm_arch"'), "is taken by assembled.toml"),
        (rule() + rule(), "'mine.x' is taken"),
        (
            "[[attribute]]\ncolumn = 'category'\npattern = 'x'\nvalue = 'gemm'",
            "no column 'category'",
        ),
        ("[[attribute]]\ncolumn = 'tile'\npattern = '['\nvalue = 'x'", "pattern is no pattern"),
        ("[[attribute]]\ncolumn = 'tile'\npattern = 'x'", "needs value"),
        (
            "[[attribute]]\ncolumn = 'tile'\npattern = 'x'\nvalue = 'x'\npart = 'tail'",
            "part is 'tail'",
        ),
    ],
)
def test_bad_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadRulesError, match=problem) as caught:
        load_rules(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert caught.value.exit_code == ExitCode.BAD_RULES


def test_message_gives_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + rule(head="'['"))
    with pytest.raises(BadRulesError, match=r"mine\.toml:9: rule mine\.x"):
        load_rules(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such rule file"):
        load_rules(tmp_path / "none.toml")


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadRulesError, match="cannot be read as text"):
        load_rules(path)
