"""``help()`` of the public names, and the signatures that it prints."""

from __future__ import annotations

import inspect
import pkgutil
import pydoc
import re
from collections.abc import Iterator
from importlib import import_module

import msgspec
import pytest

import traceana

# Adapters of frameworks import them, the modules of recorded processes hook imports, and extras
# need not be installed.
APART = ("traceana.__main__", "traceana.mcp_server", "traceana.model.", "traceana.record.inside.")


def structs() -> list[type[msgspec.Struct]]:
    for module in pkgutil.walk_packages(traceana.__path__, "traceana."):
        if not module.name.startswith(APART):
            import_module(module.name)
    found = below(msgspec.Struct)
    return sorted((one for one in found if one.__module__.startswith("traceana")), key=str)


def below(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for one in base.__subclasses__():
        yield one
        yield from below(one)


@pytest.mark.parametrize("name", [name for name in traceana.__all__ if name != "__version__"])
def test_help_shows_every_public_name_as_it_is_called(name: str) -> None:
    text = pydoc.plain(pydoc.render_doc(getattr(traceana, name)))
    assert f" {name} in module traceana" in text.splitlines()[0]


def test_help_shows_the_package() -> None:
    text = pydoc.plain(pydoc.render_doc(traceana))
    assert "class CommandResult(" in text
    assert re.search(r"\bopen\(\s*path:", text)


def test_every_struct_has_a_signature() -> None:
    # msgspec evaluates the annotations of the fields.
    found = structs()
    assert len(found) > 100
    for one in found:
        inspect.signature(one)
