"""Plants small faults in src/, one at a time, and finds out whether the tests catch them.

    python -m tools.seeded_faults map FOLDER      # which test executes which line (coverage)
    python -m tools.seeded_faults run FOLDER faults.tsv --count 300 --seed 1 --jobs 2

A fault is a sign, a bound, a constant, a default, a column, a condition or a statement that was
changed; each package gets a share by its lines. The tests of ``make test`` that execute the line
are tried, the shortest first, until one fails; if none does, those of ``make test-all``. Faults
that no test catches are listed for a reader: some do not change what the program does.
"""

from __future__ import annotations

import ast
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final
from xml.etree import ElementTree

import pytest

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "traceana"
_SELECTED: Final = "not frameworks"
_COPIED: Final = ("src", "tests", "tools", "fixtures", "workloads", "benchmarks", "docs")
_FILES: Final = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml")
_FEWEST: Final = 4
"""Faults of a package."""
_BUDGETS: Final = ((15.0, False), (30.0, False), (45.0, True))
"""Seconds of tests that are tried, and if they pass those of the next; whether the exhaustive."""
_LONGEST: Final = 600
"""Seconds after which a fault counts as caught: something no longer ends."""

_OPERATORS: Final[dict[type[ast.AST], tuple[str, str]]] = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not")},
    **{ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")},
    **{ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.And: ("and", "or")},
    **{ast.Or: ("or", "and"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&")},
}
_METHODS: Final = {
    **{"min": "max", "max": "min", "first": "last", "last": "first", "head": "tail"},
    **{"any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "sum": "max"},
    **{"min_horizontal": "max_horizontal", "max_horizontal": "min_horizontal"},
    **{"is_null": "is_not_null", "is_not_null": "is_null", "median": "mean", "cum_sum": "cum_max"},
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A text of a file, ``old`` from ``start`` to ``end`` (offsets), that becomes ``new``."""

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str
    kind: str

    @property
    def package(self) -> str:
        """The first folder of its path, or the file."""
        return Path(self.path).parts[0]


def faults_of(path: Path) -> list[Fault]:
    """Return every fault that can be planted in the Python file ``path``."""
    text = path.read_text("utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    content = text.encode()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    name = str(path.relative_to(SOURCE))
    found: list[Fault] = []

    def add(line: int, start: int, end: int, new: str, kind: str) -> None:
        found.append(Fault(name, line, start, end, content[start:end].decode(), new, kind))

    def between(left: ast.expr, right: ast.expr, operator: ast.AST, kind: str) -> None:
        known = _OPERATORS.get(type(operator))
        start, end = span(left)[1], span(right)[0]
        if known is not None and (inside := content.find(known[0].encode(), start, end)) >= 0:
            add(right.lineno, inside, inside + len(known[0]), known[1], kind)

    def columns(function: ast.AST) -> list[str]:
        named = (_column_of(node) for node in ast.walk(function))
        return [str(one.value) for one in named if one is not None]

    def visit(node: ast.AST, names: Sequence[str]) -> None:
        match node:
            case ast.JoinedStr() | ast.AnnAssign(value=None):
                return  # Positions in an f-string are those of the string.
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.keyword(arg="strict"):
                return
            case ast.FunctionDef():
                names = columns(node)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                between(left, right, operator, "bound")
            case ast.BinOp(left=left, op=operator, right=right):
                between(left, right, operator, "sign")
            case ast.BoolOp(op=operator, values=values):
                between(values[0], values[1], operator, "condition")
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
                add(node.lineno, span(node)[0], span(operand)[0], "", "condition")
            case ast.Constant(value=bool() as value):
                add(node.lineno, *span(node), str(not value), "default")
            case ast.Constant(value=int() | float() as value):
                add(node.lineno, *span(node), repr(value + 1), "constant")
            case ast.Call(func=ast.Attribute(attr=method)) if method in _METHODS:
                end = span(node.func)[1]
                add(node.func.end_lineno or 0, end - len(method), end, _METHODS[method], "function")
            case ast.AugAssign(target=target):
                start = content.find(b"=", span(target)[1]) - 1
                add(node.lineno, start, start + 1, "", "statement")
        if (named := _column_of(node)) is not None:
            others = [one for one in names if one != named.value]
            if others:
                add(named.lineno, *span(named), repr(others[0]), "column")
        for field, child in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "pattern"):
                continue
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.AST) and not _is_type(one):
                    visit(one, names)

    visit(ast.parse(text), [])
    return found


def _is_type(node: ast.AST) -> bool:
    """Return whether ``node`` is a type in brackets, such as ``Literal["a"]``."""
    return isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in ("Literal", "Final")


def _column_of(node: ast.AST) -> ast.Constant | None:
    """Return the name in ``pl.col("NAME")``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="col"), args=[ast.Constant(value=str()) as name]):
            return name
    return None


def planted(count: int, seed: int) -> list[Fault]:
    """Return ``count`` faults: of each package by its lines, but at least four."""
    by_package: dict[str, list[Fault]] = defaultdict(list)
    lines: dict[str, int] = defaultdict(int)
    for path in sorted(SOURCE.rglob("*.py")):
        for fault in faults_of(path):
            by_package[fault.package].append(fault)
        lines[path.relative_to(SOURCE).parts[0]] += path.read_text("utf-8").count("\n")
    chance = random.Random(seed)
    every = sum(lines[package] for package in by_package)
    found: list[Fault] = []
    for package, faults in sorted(by_package.items()):
        # A file of the root is no package: it has its share alone.
        least = 1 if package.endswith(".py") else _FEWEST
        wanted = max(least, round(count * lines[package] / every))
        found += chance.sample(faults, min(wanted, len(faults)))
    # The first lines of a run that is ended are of all packages.
    chance.shuffle(found)
    return found


class Map:
    """Which test functions execute which lines, and how long they take."""

    def __init__(self, folder: Path) -> None:
        """Read what :func:`measure` wrote into ``folder``."""
        self.seconds: dict[str, float] = defaultdict(float)
        for report in folder.glob("*.xml"):
            for case in ElementTree.parse(report).iter("testcase"):  # pytest's own
                name = f"{case.get('classname')}.{(case.get('name') or '').partition('[')[0]}"
                self.seconds[name] += float(case.get("time") or 0)
        self.exhaustive = _exhaustive()
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for base in folder.glob("*.coverage"):
            with sqlite3.connect(base) as data:
                rows = data.execute(
                    "SELECT path, context, numbits FROM line_bits JOIN file ON file.id = file_id "
                    "JOIN context ON context.id = context_id"
                ).fetchall()
            for path, context, bits in rows:
                test = context.rpartition("|")[2]
                name = path.rpartition("/src/traceana/")[2]
                if test not in self.seconds:
                    continue
                for at, byte in enumerate(bits):
                    for bit in range(8):
                        if byte & 1 << bit:
                            self._lines[name][8 * at + bit].add(test)

    def tests(self, fault: Fault) -> list[str]:
        """Return the tests that execute the line of ``fault``, the shortest first.

        What is executed when a module is imported is tried by all tests of its functions.
        """
        lines = self._lines[fault.path]
        found = lines.get(fault.line) or {test for own in lines.values() for test in own}
        return sorted(found, key=lambda test: (self.seconds[test], test))


def _exhaustive() -> set[str]:
    """Return the tests of which some are run by ``make test-all`` alone."""
    selected = ("--collect-only", "--exhaustive", "-m", f"{_SELECTED} and exhaustive")
    listed = subprocess.run(
        (sys.executable, "-m", "pytest", *selected),
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    nodes = (line.partition("[")[0] for line in listed.stdout.splitlines() if "::" in line)
    return {node.replace(".py::", ".").replace("/", ".") for node in nodes}


def measure(folder: Path, jobs: int) -> None:
    """Run each file of tests with coverage; write what its tests execute into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "coveragerc"
    settings.write_text(f"[run]\ndynamic_context = test_function\nsource = {SOURCE}\n")

    def one(file: Path) -> None:
        name = str(file.relative_to(ROOT)).replace("/", "_")
        command = (
            *(sys.executable, "-m", "coverage", "run", f"--rcfile={settings}"),
            *(f"--data-file={folder / name}.coverage", "-m", "pytest", "-m", _SELECTED),
            *(f"--junitxml={folder / name}.xml", "--exhaustive", str(file)),
        )
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, sorted((ROOT / "tests").rglob("test_*.py"))))


def tried(fault: Fault, tests: Sequence[str], known: Map, root: Path) -> tuple[str, str]:
    """Return the outcome and the test that failed.

    Outcomes are ``caught``, ``caught by test-all``, ``survived`` and ``not executed``.

    ``root`` is a copy of the repository, in which the fault is planted and removed.
    """
    if not tests:
        return "not executed", ""
    path = root / "src" / "traceana" / fault.path
    whole = path.read_bytes()
    path.write_bytes(whole[: fault.start] + fault.new.encode() + whole[fault.end :])
    left = {False: list(tests), True: [test for test in tests if test in known.exhaustive]}
    try:
        compile(path.read_bytes(), str(path), "exec")
        for budget, exhaustive in _BUDGETS:
            some: list[str] = []
            while left[exhaustive] and (not some or budget > 0):
                some.append(left[exhaustive].pop(0))
                budget -= known.seconds[some[-1]]
            if some and (failed := _failed(some, root, exhaustive)):
                return "caught by test-all" if exhaustive else "caught", failed
    except SyntaxError:
        return "no fault", ""
    finally:
        path.write_bytes(whole)
    return "survived", ""


def _failed(tests: Sequence[str], root: Path, exhaustive: bool) -> str:
    """Return the first of ``tests`` that fails in ``root``, empty if none does."""
    nodes = []
    for test in tests:
        module, _, function = test.rpartition(".")
        nodes.append(f"{module.replace('.', '/')}.py::{function}")
    environment = {"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin", "HOME": str(root)}
    selected = f"{_SELECTED} and exhaustive" if exhaustive else _SELECTED
    command = (
        *(sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", selected),
        *(["--exhaustive"] if exhaustive else []),
        *nodes,
    )
    try:
        ended = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=_LONGEST, env=environment,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "(no end)"
    if ended.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return ""
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split()[1] if failed else f"(exit {ended.returncode})"


def run(folder: Path, output: Path, faults: Sequence[Fault], jobs: int) -> None:
    """Try each of ``faults``; write a line for each into ``output``."""
    known = Map(folder)
    roots: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as scratch, output.open("w", encoding="utf-8") as lines:
        # Tests of traces look for them beside the repository.
        if (ROOT.parent / "shared").is_dir():
            (Path(scratch) / "shared").symlink_to(ROOT.parent / "shared")
        for job in range(jobs):
            root = Path(scratch) / str(job)
            root.mkdir()
            for one in _COPIED:
                shutil.copytree(ROOT / one, root / one, symlinks=True)
            for one in _FILES:
                shutil.copy(ROOT / one, root / one)
            roots.put(root)

        def one_fault(fault: Fault) -> tuple[Fault, str, str, float]:
            root, begun = roots.get(), time.monotonic()
            try:
                outcome, test = tried(fault, known.tests(fault), known, root)
            finally:
                roots.put(root)
            return fault, outcome, test, time.monotonic() - begun

        counts: dict[str, int] = defaultdict(int)
        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(one_fault, fault) for fault in faults]):
                fault, outcome, test, seconds = done.result()
                counts[outcome] += 1
                place = f"{fault.path}:{fault.line}"
                row = (place, fault.kind, fault.old, fault.new, outcome, test, f"{seconds:.1f}")
                lines.write("\t".join(part.replace("\n", " ") for part in row) + "\n")
                lines.flush()
    print("; ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))


def main() -> None:
    """Run the program."""
    parser = ArgumentParser(prog="python -m tools.seeded_faults", description=__doc__)
    parser.add_argument("what", choices=["map", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, nargs="?", default=Path("faults.tsv"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.what == "map":
        measure(given.folder, given.jobs)
    else:
        run(given.folder, given.output, planted(given.count, given.seed), given.jobs)


if __name__ == "__main__":
    main()
