"""Replaces the texts of a recording that its program and its machine gave, for a bug report.

Words of traceana's own files and names of public libraries stay: they decide the classes, the
layers and the FLOPs. Every other word becomes a numbered one, the same everywhere, and what is
between words stays, so that paths, indices and stacks keep their form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec
import polars as pl

from traceana.enrich.frames import PUBLIC_FILE
from traceana.enrich.serving import ITERATION
from traceana.trace import RECORDED_WITH, Trace
from traceana.trace.schema import LABEL, TABLES
from traceana.trace.taxonomy import CLASS_COLUMNS

SOURCE: Final = "anonymous"
"""The path of an anonymous recording."""

_WORD: Final = re.compile(r"\d+(?:\.\d+){3,}|\w+")
_ITERATION: Final = re.compile(ITERATION)
_IDENTIFYING: Final = re.compile(r"\.|\d{5}")
"""Addresses of machines, dates, numbers of jobs."""
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\WA-Za-z\d_]+")
"""A word within a word: of ``ReluBackward0``, ``Relu`` and ``Backward``."""
_NUMBERED: Final = re.compile(r"(.*?)((?:Backward)?\d{0,4})")
_FILE: Final = re.compile(r"\.pyx?(?:\(|$)")
_PUBLIC_OPERATOR: Final = re.compile(
    r"(?:aten|prims?|quantized|profiler|c10d?|nccl|record_param_comms|torch|torchvision|autograd|"
    r"mkldnn|onednn|xnnpack|cudnn|fbgemm|xla|triton|inductor|transformer_engine|flash_attn|vllm|"
    r"sgl_kernel|deepspeed|apex)(?:_\w+)?::[\w:]+(?:\.\w+)?"
)
_KEPT: Final = frozenset(
    {
        *(("ops", name) for name in ("input_shapes", "input_strides")),
        ("ranges", "input_shapes"),
        *(
            ("instructions", name)
            for name in (
                *("opcode", "target", "input_shapes", "input_types"),
                *("output_shape", "output_type", "attributes"),
            )
        ),
        *((table, name) for table in ("names", "classes") for name in CLASS_COLUMNS),
        *(("names", name) for name in ("name", "rule")),
        ("classes", "context_rule"),
        *(("episodes", name) for name in ("algorithm", "direction")),
        *(("devices", name) for name in TABLES["devices"]),
        ("calls", "name"),
        ("activities", "collective"),
        ("links", "kind"),
        ("process_groups", "ranks"),
        ("summary", "name"),
        ("counters", "name"),
        ("samples", "unit"),
        *(("ledger", name) for name in ("reason", "table")),
    }
)
"""Columns of text that the program does not give."""
_REMOVED: Final = (("frames", "text"), ("ledger", "detail"))
_OF_MACHINE: Final = frozenset(
    ("command", "host", "hostnames", "hosts", "processes", "warnings", RECORDED_WITH)
)
"""Properties that name the machine, the user or the program."""


@cache
def public_words() -> frozenset[str]:
    """Return the words, in lower case, that stay as they are: all of traceana's own files.

    No other word decides a figure, but as a part of a name that a pattern matches.
    """
    words: set[str] = set()
    folders = [resources.files("traceana")]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.is_dir():
                folders.append(entry)
            elif entry.name.endswith((".py", ".toml", ".csv", ".tsv")):
                words |= set(_PART.findall(entry.read_text("utf-8")))
    return frozenset(map(str.lower, words))


class Pseudonyms:
    """Texts with numbered words in place of private ones; equal words have equal numbers."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def text(self, original: str) -> str:
        """Return ``original`` without its private words."""
        if original not in self._texts:
            self._texts[original] = self._without_private_words(original)
        return self._texts[original]

    def _without_private_words(self, original: str) -> str:
        if _PUBLIC_OPERATOR.fullmatch(original) or _ITERATION.fullmatch(original):
            return original
        if _FILE.search(original):
            return ";".join(map(self._frame, original.split(";")))
        return _WORD.sub(self._word, original)

    def _frame(self, original: str) -> str:
        folder, packages, file = original.rpartition("-packages/")
        if PUBLIC_FILE.match(file):
            return f"site{packages}{file}" if folder else file
        return _WORD.sub(self._word, original)

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        is_public = public_words().issuperset(map(str.lower, _PART.findall(word)))
        if word.isdecimal() or (is_public and not _IDENTIFYING.search(word)):
            return word
        numbered = _NUMBERED.fullmatch(word)
        stem, ending = numbered.groups() if numbered else (word, "")
        pseudonym = self._words.setdefault(stem, f"n{len(self._words) + 1}")
        return f"{pseudonym}_{ending}" if ending else pseudonym

    def value(self, value: Any) -> Any:
        """Return a JSON value without the private words of its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value


def anonymous(trace: Trace) -> Trace:
    """Return ``trace`` without the words that its program and its machine gave.

    Kernels, calls, shapes, sizes, times and classes stay. Lines of source, what the ledger says in
    detail, the layer manifest and the rules of the user are left out.
    """
    pseudonyms = Pseudonyms()
    made = {}
    for table, schema in TABLES.items():
        frame = trace.tables[table]
        changed = [
            _mapped(frame[column], pseudonyms)
            for column, dtype in schema.items()
            if dtype in (pl.String, LABEL) and (table, column) not in _KEPT
        ]
        made[table] = frame.with_columns(changed).with_columns(
            pl.lit(None, pl.String).alias(column) for name, column in _REMOVED if name == table
        )
    made["names"] = _names(trace, pseudonyms)
    meta = trace.meta
    properties = {
        name: pseudonyms.value(value)
        for name, value in meta.properties.items()
        if name not in _OF_MACHINE
    }
    part = meta.cut and msgspec.structs.replace(meta.cut, source=SOURCE)
    return (
        trace.with_manifest(None)
        .with_tables(**made)
        .with_meta(
            source=SOURCE,
            properties=properties,
            opened=(),
            opened_with=(),
            operator_rules=(),
            cut=part,
        )
    )


def _names(trace: Trace, pseudonyms: Pseudonyms) -> pl.DataFrame:
    """Return the names: of operators and ranges without private words, of kernels as they are."""
    names = trace.tables.names
    activities, summary = trace.tables.activities, trace.tables.summary
    of_host = pl.concat(
        [
            table.filter(pl.col("kind") == "op")["name_id"].drop_nulls()
            for table in (activities, summary)
        ]
    ).unique()
    is_of_host = pl.int_range(names.height, eager=True).is_in(of_host.implode())
    return names.with_columns(
        names["name"].zip_with(~is_of_host, _mapped(names["name"], pseudonyms))
    )


def _mapped(column: pl.Series, pseudonyms: Pseudonyms) -> pl.Series:
    distinct = column.drop_nulls().unique(maintain_order=True).cast(pl.String)
    if distinct.is_empty():
        return column
    mapped = pl.Series([pseudonyms.text(text) for text in distinct], dtype=pl.String)
    texts = column.cast(pl.String).replace_strict(distinct, mapped, return_dtype=pl.String)
    return texts.cast(column.dtype).alias(column.name)
