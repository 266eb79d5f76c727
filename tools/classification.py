"""Measures the classifier, and writes the measured part of docs/classification.md.

    python -m tools.classification [--labels FILE...] [--lexicon FOLDER_OR_TAR] [--update]

Labels are tab-separated tables with a header: ``name``, ``category``, ``algorithm``, ``direction``,
``batched``, ``source``, and optionally ``sure``: rows with 0 are left out. The lexicon is a folder,
or a tar of one, of text files with one kernel name per line.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from traceana.enrich.classify import classify_names
from traceana.trace.taxonomy import FAMILY_OF_ALGORITHM

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "classification.md"
SHARED = ROOT.parent / "shared"
SAMPLE = ROOT / "tests" / "enrich" / "classify" / "data" / "sample.tsv"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOT_KERNELS = r"^(?:variable|host)\.|^generic\.(?:device_variable|host_symbol)$"
"""Rules for symbols that are not kernels: device variables, host functions."""


def read_labels(path: Path) -> pl.DataFrame:
    """Return a labelled list: name, category, algorithm, family, direction, batched, source."""
    table = pl.read_csv(path, separator="\t", quote_char=None, infer_schema=False)
    if "sure" in table.columns:
        table = table.filter(pl.col("sure") == "1")
    return table.select(
        "name",
        "category",
        "source",
        *(pl.col(column).replace("", None) for column in ("algorithm", "direction", "batched")),
    ).with_columns(
        family=pl.col("algorithm").replace_strict(FAMILY_OF_ALGORITHM, default=None),
        batched=pl.col("batched") == "true",
    )


def compare(labels: pl.DataFrame) -> pl.DataFrame:
    """Return whether each label of a name is predicted, a row per name; null without a label."""
    found = classify_names(labels["name"])
    columns = ("category", "family", "algorithm", "direction", "batched")
    right = [
        pl.when(labels[column].is_not_null())
        .then(found[column].eq_missing(labels[column]))
        .alias(column)
        for column in columns
    ]
    return labels.select("name", pl.col("category").alias("labelled"), "source", *right)


def share(right: pl.Series) -> str:
    known = right.drop_nulls()
    if not len(known):
        return ""
    hits = int(known.sum())
    return f"{hits} of {len(known)} ({100 * hits / len(known):.1f} %)"


def accuracy(compared: pl.DataFrame) -> Iterator[str]:
    yield "| what | right |"
    yield "|---|---|"
    for column in ("category", "family", "algorithm", "direction", "batched"):
        yield f"| {column} | {share(compared[column])} |"
    yield ""


def breakdown(compared: pl.DataFrame) -> Iterator[str]:
    for column, header in (("labelled", "category"), ("source", "source")):
        yield f"| {header} | category right | algorithm right | direction right |"
        yield "|---|---|---|---|"
        for (key,), rows in compared.group_by(column, maintain_order=True):
            cells = (share(rows[what]) for what in ("category", "algorithm", "direction"))
            yield f"| {key} | {' | '.join(cells)} |"
        yield ""


def lexicon_files(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each library of the lexicon with its names."""
    if path.is_dir():
        for file in sorted(path.rglob("*.txt")):
            yield file.stem, file.read_text(encoding="utf-8").splitlines()
        return
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            content = archive.extractfile(member) if member.name.endswith(".txt") else None
            if content is not None:
                text = io.TextIOWrapper(content, encoding="utf-8")
                yield Path(member.name).stem, text.read().splitlines()


def coverage(path: Path) -> Iterator[str]:
    yield "### Names of the libraries that end in `other`"
    yield ""
    yield "| library | symbols | `other` | of these kernels | `other` |"
    yield "|---|---|---|---|---|"
    for library, names in lexicon_files(path):
        classes = classify_names(names)
        kernels = classes.filter(~pl.col("rule").str.contains(NOT_KERNELS))
        cells = (f"{rows.height} | {_other(rows)}" for rows in (classes, kernels))
        yield f"| {library} | {' | '.join(cells)} |"
    yield ""


def _other(classes: pl.DataFrame) -> str:
    count = classes.filter(pl.col("category") == "other").height
    return f"{count} ({100 * count / max(classes.height, 1):.2f} %)"


def speed(path: Path, count: int = 100_000) -> Iterator[str]:
    names = pl.Series([name for _, part in lexicon_files(path) for name in part]).unique()
    names = names.sample(min(count, len(names)), seed=1)
    classify_names(names[:100])
    start = time.perf_counter()
    classify_names(names)
    yield f"{len(names)} distinct names in {time.perf_counter() - start:.1f} s."


def report(labels: Iterable[Path], lexicon: Path | None) -> tuple[str, str]:
    """Return the accuracy on each list, for the page, and everything that was measured."""
    page: list[str] = []
    whole: list[str] = []
    for path in labels:
        if path.is_file():
            compared = compare(read_labels(path))
            summary = [f"### Against {path.name}", "", *accuracy(compared)]
            page += summary
            whole += [*summary, *breakdown(compared)]
    if lexicon is not None and lexicon.exists():
        whole += coverage(lexicon)
    return "\n".join(page).strip() + "\n", "\n".join(whole).strip() + "\n"


def updated(page: str, measured: str) -> str:
    """Return ``page`` with the part between the markers replaced."""
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}\n{measured}{END}{tail}"


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.classification", description=__doc__)
    parser.add_argument("--labels", type=Path, nargs="*", help="labelled lists")
    parser.add_argument("--lexicon", type=Path, help="folder or tar of kernel names")
    parser.add_argument("--update", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--speed", action="store_true", help="time 100,000 names of the lexicon")
    options = parser.parse_args(None if arguments is None else list(arguments))
    labels = options.labels or [SHARED / "kernel_labels.tsv"]
    lexicon = options.lexicon or SHARED / "lexicon.tar.xz"
    summary, measured = report(labels, lexicon)
    print(measured)
    if options.speed:
        print("\n".join(speed(lexicon)))
    if options.update:
        PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), summary), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
