"""The locked versions can be installed with each Python 3.11, not only with the newest."""

from __future__ import annotations

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet


def test_no_installed_version_needs_a_later_python() -> None:
    """What is installed here is what is locked: tools/lock.py writes the one from the other."""
    later = [
        f"{one.name} {one.version}: Python {needed}"
        for one in distributions()
        for needed in one.metadata.get_all("Requires-Python") or ()
        if not SpecifierSet(needed).contains("3.11.0")
    ]
    assert later == []
