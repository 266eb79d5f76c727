"""A module is watched on its first import anywhere, and is otherwise unchanged."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from traceana.record.inside.import_hooks import watch


@pytest.mark.parametrize("asked", [False, True], ids=["imported", "asked for, then imported"])
def test_a_module_calls_back_once_when_it_is_imported(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_by_nobody.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "watched_by_nobody", raising=False)
    seen: list[int] = []
    watch({"watched_by_nobody": lambda module: seen.append(module.answer)})
    if asked:
        assert find_spec("watched_by_nobody") is not None
        assert seen == []
    module = import_module("watched_by_nobody")
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    import_module("watched_by_nobody")
    assert seen == [42]
