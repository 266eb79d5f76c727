"""No module imports itself by way of others, packages included.

``lint-imports`` looks at siblings alone: a module may not import a package that imports it either.
There are no exceptions: imports in functions and imports for types count too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
IMPORT = re.compile(
    r"^[ \t]*from (traceana[\w.]*|\.+[\w.]*) import (?:\(([^)]*)\)|([^\n(]*))$", re.MULTILINE
)


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(name: str, text: str, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that the module ``name`` imports, also in functions and for types."""
    parts = name.split(".")
    for package, lines, line in IMPORT.findall(text):
        if package.startswith("."):
            inner = package.lstrip(".")
            up = len(package) - len(inner) - (known[name].name == "__init__.py")
            package = ".".join([*parts[: len(parts) - up], *([inner] if inner else [])])
        names = re.sub(r"#[^\n]*", "", lines or line).replace("\n", " ").split(",")
        for one in filter(str.strip, names):
            module = f"{package}.{one.strip().split(' as ')[0].strip()}"
            yield module if module in known else package


def circle(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    edges = {
        name: set(imported(name, path.read_text("utf-8"), known)) - {name}
        for name, path in known.items()
    }
    assert sum(map(len, edges.values())) > 1_000
    assert circle(edges) == []


def test_a_circle_through_a_package_is_found() -> None:
    known = {"traceana.a": Path(), "traceana.a.b": Path()}
    texts = {
        "traceana.a": "from traceana.a.b import c\n",
        "traceana.a.b": "def f():\n    from traceana.a import (  # here\n        d,\n    )\n",
    }
    edges = {name: set(imported(name, text, known)) for name, text in texts.items()}
    assert set(circle(edges)) == set(texts)
    texts["traceana.a.b"] = "from . import d\n"
    assert set(circle({name: set(imported(name, text, known)) for name, text in texts.items()}))
    texts["traceana.a.b"] = "if TYPE_CHECKING:\n    from traceana.a import d\n\nx = 1\n"
    assert set(circle({name: set(imported(name, text, known)) for name, text in texts.items()}))
