"""The inputs of a comparison: runs by path, sweep or baseline name, their labels, forced pairs.

A file of forced pairs that ends in ``.csv`` has two columns, the layer of a and the layer of b,
with or without the header ``a,b``. Any other is TOML without tables: ``"features.0" = "conv1"``.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import rtoml

from traceana.advise.saved import save
from traceana.comparison.layer_features import RunLayers
from traceana.errors import CannotWriteError, InvalidInputError, NotFoundError
from traceana.files import text_content
from traceana.plain_text import as_unicode
from traceana.readers.inputs import Kind, kind_of
from traceana.runs import RecordedRun, find_runs, is_run, read_run
from traceana.trace.bundle import is_bundle

if TYPE_CHECKING:
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace


_SUFFIXES: Final = frozenset(
    (
        *(".gz", ".zst", ".xz", ".json", ".trace", ".pt", ".pb", ".xplane", ".sqlite", ".sql"),
        *(".nsys-rep", ".qdrep", ".qdstrm", ".nvvp", ".nvprof", ".csv", ".tsv", ".parquet"),
    )
)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_Entry = tuple[str, str, int]
Pairs = Mapping[str, str] | str | os.PathLike[str]
"""Forced pairs of layers of two runs: a mapping of names, or a file of them."""
Given: TypeAlias = "Trace | str | os.PathLike[str]"


def opened(
    given: Given, model: Manifest | None = None, other: Given | None = None
) -> tuple[Trace, Manifest | None]:
    """Return the trace of a run and its layer manifest: ``model``, or the one beside its file.

    Replays of CUDA graphs without layers get the layers of ``other``, the file of a run that it is
    compared with. Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.opening import open_trace

    if not isinstance(given, str | os.PathLike):
        return given, model or given.manifest
    trace = open_trace(given)
    if isinstance(other, str | os.PathLike) and lacks_capture(trace, given, other):
        trace = open_trace(given, capture=other)
    return trace, model or trace.manifest


def lacks_capture(trace: Trace, given: Given, other: Given) -> bool:
    """Return whether ``trace`` replays CUDA graphs without layers, and ``other`` may have them.

    Both have to be files of recordings; ``given`` is the file of ``trace``.
    """
    from traceana.trace.bundle import is_bundle

    paths = [Path(path) for path in (given, other) if isinstance(path, str | os.PathLike)]
    recorded = len(paths) == 2 and all(path.is_file() and not is_bundle(path) for path in paths)
    return recorded and bool((trace.tables.ledger["reason"] == "graph_unknown").any())


def recorded_batch(given: Given) -> int | None:
    """Return the images per step from the folder of a recorded run; else None.

    Raises the errors of :func:`traceana.runs.read_run` where that folder is damaged.
    """
    if not isinstance(given, str | os.PathLike) or not is_run(Path(given)):
        return None
    timing = read_run(given).timing()
    return None if timing is None else timing.images_per_step


class Found(msgspec.Struct, frozen=True):
    """The compared runs: their paths and labels, and the runs left out with the reasons."""

    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    left_out: tuple[str, ...]


def runs_in(given: Sequence[Path]) -> Found:
    """Return the runs of ``given``; a sweep or a folder of recorded runs is replaced by its runs.

    Runs that failed or have no trace are left out. If all runs are from such folders, they are
    labelled by the values in which they differ (``batch=4``), else by their paths. Raises the
    errors of :func:`traceana.runs.find_runs`.
    """
    paths: list[Path] = []
    left_out: list[str] = []
    recorded: list[RecordedRun] = []
    for path in given:
        if kind_of(path) is not Kind.RUNS:
            paths.append(path)
            continue
        for run in find_runs([path]):
            if run.complete and run.run.traces:
                recorded.append(run)
                paths.append(run.folder)
            else:
                left_out.append(f"{run.folder}: {run.run.reason or 'no trace'}")
    names = _differing_values([_facts(run) for run in recorded])
    if len(recorded) < len(paths) or len(set(names)) < len(names):
        names = labels(paths)
    return Found(tuple(paths), tuple(names), tuple(left_out))


def _facts(run: RecordedRun) -> Mapping[str, Any]:
    workload = run.run.workload
    if run.run.point or workload is None:
        return run.run.point
    facts = {"framework": workload.framework, "network": workload.network, "batch": workload.batch}
    return {**facts, **workload.options}


def _differing_values(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each run its values that differ between the runs."""
    names = dict.fromkeys(name for values in facts for name in values)
    several = [name for name in names if len({str(values.get(name)) for values in facts}) > 1]
    return [
        ",".join(f"{name}={values[name]}" for name in several if name in values) or "?"
        for values in facts
    ]


def baselines_folder() -> Path:
    """Return the folder of baselines: ``traceana/baselines`` in ``$XDG_DATA_HOME``.

    Where that is unset, empty or not an absolute path, it is in ``~/.local/share``, by the XDG Base
    Directory Specification.
    """
    configured = os.environ.get("XDG_DATA_HOME", "")
    home = (
        Path(configured) if Path(configured).is_absolute() else Path("~/.local/share").expanduser()
    )
    return home / "traceana" / "baselines"


def resolved(given: Path) -> Path:
    """Return ``given`` where it exists, else the baseline of that name.

    Raises :class:`~traceana.errors.NotFoundError`, which lists the saved baselines.
    """
    if given.exists():
        return given
    folder = baselines_folder()
    name = str(given)
    if _NAME.fullmatch(name) and is_bundle(folder / name):
        return folder / name
    kept = sorted(path.name for path in folder.glob("*") if is_bundle(path))
    there = f"baselines: {', '.join(kept)}" if kept else "no baselines saved"
    raise NotFoundError(f"no file or baseline named {given}; {there}")


def repetitions(given: Path) -> list[Path]:
    """Return the runs that ``given`` names: one, or several separated by commas.

    A path with a comma that exists is one. Raises as :func:`resolved`.
    """
    names = [given] if given.exists() else map(Path, str(given).split(","))
    return [resolved(name) for name in names]


def save_baseline(name: str, trace: Trace, model: Manifest | None) -> Path:
    """Save ``trace`` under ``name``, with its layer manifest; return its bundle.

    An existing baseline of that name is replaced. Raises
    :class:`~traceana.errors.CannotWriteError`, also for a name with characters other than letters,
    digits, ``-`` and ``_``.
    """
    return save_run(baselines_folder(), name, trace, model, replace=True)


def save_run(
    folder: Path, name: str, trace: Trace, model: Manifest | None, *, replace: bool
) -> Path:
    """Save ``trace`` as the bundle ``name`` in ``folder``, with its layer manifest beside it.

    Return the bundle. Raises :class:`~traceana.errors.CannotWriteError`, also for a name with
    characters other than letters, digits, ``-`` and ``_``, and if it exists without ``replace``.
    """
    if not _NAME.fullmatch(name):
        raise CannotWriteError(f"invalid baseline name {name!r}: use letters, digits, - and _ only")
    bundle = save(trace, folder / name, overwrite=replace)
    beside = folder / f"{name}.layers.json"
    if model is not None:
        model.write(beside)
        return bundle
    try:
        beside.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWriteError(f"cannot replace {beside} ({error.strerror}): delete it") from error
    return bundle


def forced_pairs(
    given: Pairs | None,
    a: RunLayers,
    b: RunLayers,
    names: tuple[str, str] = ("the baseline", "the candidate"),
) -> dict[int, int]:
    """Return the forced pairs, by the indices of the layers in ``a`` and ``b``.

    ``names`` are the runs' names in errors. Raises :class:`~traceana.errors.InvalidInputError`,
    with the line, for an invalid pair, a layer that is not in the run, and one paired twice.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        entries, where = [(x, y, 0) for x, y in given.items()], "pairs"
    else:
        path, where = Path(given), str(given)
        try:
            text = text_content(path, "file of layer pairs")
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{path} is not text: write pairs as TOML or CSV") from error
        entries = (_csv if path.suffix.lower() == ".csv" else _toml)(path, text)
    taken: set[int] = set()
    places = [{layer.label: at for at, layer in enumerate(run.layers)} for run in (a, b)]
    pairs: dict[int, int] = {}
    for name_a, name_b, line in entries:
        at = f"{where}, line {line}" if line else where
        for name, of, which in zip((name_a, name_b), places, names, strict=True):
            if name not in of:
                raise InvalidInputError(
                    f"{at}: no layer {name!r} with work in {which}: traceana layers lists them"
                )
        place_a, place_b = places[0][name_a], places[1][name_b]
        if place_a in pairs or place_b in taken:
            twice = name_a if place_a in pairs else name_b
            raise InvalidInputError(f"{at}: {twice!r} is paired twice: keep one pair")
        pairs[place_a] = place_b
        taken.add(place_b)
    return pairs


def _csv(path: Path, text: str) -> list[_Entry]:
    rows = csv.reader(io.StringIO(text), strict=True)
    pairs: list[_Entry] = []
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or (not pairs and cells == ["a", "b"]):
                continue
            if len(cells) != 2 or not all(cells):
                raise InvalidInputError(
                    f"{path}, line {rows.line_num}: expected two layer names, a,b"
                )
            pairs.append((cells[0], cells[1], rows.line_num))
    except csv.Error as error:
        raise InvalidInputError(f"{path}, line {rows.line_num}: invalid CSV: {error}") from error
    return pairs


def _toml(path: Path, text: str) -> list[_Entry]:
    try:
        table = rtoml.loads(text)
    except RecursionError as error:
        raise InvalidInputError(f"{path}: invalid TOML (nested too deeply)") from error
    except rtoml.TomlParsingError as error:
        line = re.search(r"at line (\d+)", str(error))
        at = f", line {line[1]}" if line else ""
        what = re.sub(r" \(at .*\)$", "", str(error))
        raise InvalidInputError(
            f'{path}{at}: invalid TOML ({what}): write "layer of a" = "layer of b"'
        ) from error
    lines: dict[str, int] = {}
    for number, written in enumerate(text.splitlines(), 1):
        left = written.partition("=")[0].strip()
        lines.setdefault(left.strip("\"'"), number)
        lines.setdefault(left.partition(".")[0], number)
    pairs: list[_Entry] = []
    for key, value in table.items():
        line_of = lines.get(key, 0)
        if not isinstance(value, str):
            at = f", line {line_of}" if line_of else ""
            raise InvalidInputError(
                f"{path}{at}: the value of {key!r} is not a layer name: write "
                '"layer of a" = "layer of b", names with dots in quotes'
            )
        pairs.append((key, value, line_of))
    return pairs


def labels(paths: Sequence[Path]) -> list[str]:
    """Return distinct short names of the runs in ``paths``.

    They are the names of the files or folders without the suffixes of trace formats, or where two
    are equal the parts of all paths that differ. A path that occurs twice is numbered.
    """
    stems = [_stem(path) for path in paths]
    distinct = len(set(stems)) == len(stems)
    names = stems if distinct else _differing_parts([path.absolute() for path in paths])
    seen: Counter[str] = Counter()
    distinct_names: list[str] = []
    for name in names:
        seen[name] += 1
        distinct_names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct_names


def _differing_parts(paths: Sequence[Path]) -> list[str]:
    """Return the paths without their common beginning and end."""
    parts = [[*map(as_unicode, path.parts[:-1]), _stem(path)] for path in paths]
    shortest = min(map(len, parts)) - 1
    first = next((at for at in range(shortest) if len({p[at] for p in parts}) > 1), shortest)
    room = min(len(p) for p in parts) - first - 1
    last = next((at for at in range(room) if len({p[-1 - at] for p in parts}) > 1), room)
    return ["/".join(p[first : len(p) - last]) for p in parts]


def _stem(path: Path) -> str:
    name = path.name
    while (suffix := Path(name).suffix) in _SUFFIXES and name != suffix:
        name = name.removesuffix(suffix)
    return as_unicode(name or str(path))
