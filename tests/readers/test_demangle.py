"""Names are demangled; no name, however hostile, stops the reader."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.manifest import TRACES
from traceana.enrich.classify import classify_names
from traceana.readers import kernel_names
from traceana.readers.kernel_names import LONGEST, NameTable, demangle
from traceana.trace import Ledger


def bomb(levels: int) -> str:
    """Return ``f(A<…>)`` in which every level names the one before it twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text, before = "_Z1f1AIiiE", "S0_"
    for level in range(levels):
        text += f"S_I{before}{before}E"
        before = f"S{digits[level + 1]}_"
    return text


ANONYMOUS = "_ZN58_GLOBAL__N__36_tmpxft_00008e34_00000000_11_SoftMax_ii_a3311kIfEEvv"


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_Z3foov", "foo()"),
        ("_Z1fIfEvT_", "void f<float>(float)"),
        ("_ZN2at6native3addEPfl", "at::native::add(float*, long)"),
        (ANONYMOUS, "void (anonymous namespace)::k<float>()"),
    ],
)
def test_names_as_compilers_mangle_them(mangled: str, plain: str) -> None:
    assert demangle([mangled]).names == {mangled: plain}


@pytest.mark.parametrize(
    "name",
    ["volta_sgemm_32x128_tn", "", "_Z", "_Z\n1fv", "_Z1", "__Z1fv", "?f@@YAXXZ", "_RNvC1a1b"],
)
def test_other_names_stay_as_they_are(name: str) -> None:
    assert demangle([name]).names == {}


def test_no_process_is_started_for_names_that_are_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert demangle(["volta_sgemm_32x128_tn", "void f<int>(float)"]).names == {}


def test_names_that_end_the_demangler_stay_mangled() -> None:
    deep = "_Z1f" + "1AI" * 4000 + "i" + "E" * 4000
    assert len(deep) < LONGEST + 1000
    names = ["_Z1gv", bomb(30), "_Z1hv", deep, bomb(33), "_Z1iv", "_Z1f" + "P" * LONGEST + "i"]
    begin = time.monotonic()
    found = demangle(names).names
    assert time.monotonic() - begin < 15
    assert {name: found.get(name) for name in ("_Z1gv", "_Z1hv", "_Z1iv")} == {
        "_Z1gv": "g()",
        "_Z1hv": "h()",
        "_Z1iv": "i()",
    }
    assert bomb(30) not in found
    assert bomb(33) not in found
    assert names[-1] not in found


def test_a_name_that_grows_beyond_reading_stays_as_it_is() -> None:
    assert len(demangle([bomb(8)]).names[bomb(8)]) > 1000
    assert demangle([bomb(18)]).names == {}


@given(st.lists(st.from_regex(r"\A_Z[0-9A-Za-z_.$]{1,60}\Z"), max_size=20))
@settings(deadline=None, max_examples=20)
def test_any_names_leave_one_answer_each(names: list[str]) -> None:
    found = demangle(names).names
    assert set(found) <= set(names)
    assert all("\n" not in plain for plain in found.values())


# Names that no other test has: those once demangled need no process.


def test_without_the_library_names_stay_and_the_ledger_has_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_names, "find_spec", lambda name: None)
    ledger = Ledger()
    table = NameTable(ledger)
    table.ids(pl.Series(["_Z6alone1v", "plain"]))
    assert table.frame()["name"].to_list() == ["_Z6alone1v", "plain"]
    assert ledger.frame().select("reason", "severity", "kept", "count", "detail").rows() == [
        ("not_demangled", "note", True, 1, "pycxxfilt is not installed")
    ]


def test_without_an_interpreter_to_run_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(Path(sys.executable).with_name("nosuch")))
    found = demangle(["_Z6alone1v"])
    assert (found.names, found.failed) == ({}, 1)
    assert "cannot be run: No such file" in str(found.error)


def test_what_a_broken_helper_process_printed_is_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("raise ImportError('no symbol xyz')")
    monkeypatch.setattr(kernel_names, "_WORKER", helper)
    found = demangle(["_Z6alone1v", "_Z6alone2v"])
    assert (found.names, found.failed) == ({}, 2)
    assert "no symbol xyz" in str(found.error)


def test_a_name_is_demangled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = demangle(["_Z5againv", "_Z5againv"])
    monkeypatch.setattr(subprocess, "run", None)
    assert demangle(["_Z5againv"]).names == first.names == {"_Z5againv": "again()"}


def test_two_spellings_of_a_kernel_are_one_name() -> None:
    table = NameTable(Ledger())
    assert table.ids(pl.Series(["_Z1fv", "f()", "_Z1gv"])).to_list() == [0, 0, 1]
    assert table.ids(pl.Series(["g()", "_Z1fv"])).to_list() == [1, 0]
    assert table.frame()["name"].to_list() == ["f()", "g()"]


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="no c++filt")
@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
def test_names_classify_as_in_the_spelling_of_gnu() -> None:
    mangled = []
    for path in sorted((TRACES / "nvprof").iterdir()):
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
            sql = "SELECT value FROM StringTable WHERE value GLOB '_Z*'"
            mangled += [value for (value,) in connection.execute(sql)]
    gnu = subprocess.run(
        ["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    plain = demangle(mangled).names
    assert len(plain) == len(mangled) > 30
    # Shown names keep their spelling; what was made of them is the same.
    ours = classify_names([plain[name] for name in mangled]).drop(
        "name", "short_name", strict=False
    )
    assert ours.equals(classify_names(gnu).drop("name", "short_name", strict=False))
