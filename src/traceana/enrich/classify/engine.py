"""Application of a rule set to names: each rule to all undecided distinct names at once.

Patterns run in polars' Rust regular expressions, whose time is linear in the text for every
pattern. Names are only searched; they are never used as patterns.

Compiling a pattern takes a thousand times longer than searching for a word, and most rules match no
name of a given trace. So a pattern is compiled only if its words, which every match contains, occur
in the names. ``tools/rule_words.py`` derives them; patterns of users are always compiled.

Rules are matched against the canonical spelling of a name and against its head. Tables keep names
as recorded by the profiler.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import chain, compress
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana import cache
from traceana.enrich.classify.ruleset import Attribute, ClassValue, Rule, RuleSet, load_rules
from traceana.files import UNDECODABLE, code_in, digest
from traceana.trace.taxonomy import CLASS_COLUMNS, CLASS_SCHEMA, FAMILY_OF_ALGORITHM

Indices = npt.NDArray[np.int64]

_GROUP: Final = re.compile(r"\$(\d)")
_AT_ONCE: Final = 64
"""Rules per batch; names that a rule decides are dropped at the end of its batch."""

_FILE: Final = "classes.json"
"""The classes that earlier processes found by traceana's own rules, in the user's cache. Reading
the rules, and compiling the patterns that a trace's names may match, takes a fifth of the time of
a report on a small trace; most traces of one user have the same names."""
MOST_IN_FILE: Final = 300_000
"""Bytes of the names in the file: some thousand names, read in milliseconds."""
_MOST_KEPT: Final = 4_000_000
"""Bytes of the names whose classes are kept. Recordings of one program have far fewer."""


def classify_names(names: Sequence[str] | pl.Series, rules: RuleSet | None = None) -> pl.DataFrame:
    """Return the class of each kernel, copy or operator name, as :data:`CLASS_SCHEMA`.

    ``rules`` defaults to traceana's own. A null in ``names`` is treated as an empty name.
    """
    given = pl.Series("name", names, dtype=pl.String).fill_null("")
    if given.is_empty():
        return pl.DataFrame(schema=CLASS_SCHEMA)
    if given.estimated_size() <= _MOST_KEPT:
        cache_of_rules = _own_cache() if rules is None else _cache_of(rules)
        return cache_of_rules.classes_of(given)
    distinct = given.unique(maintain_order=True)
    classes = _classify_distinct(distinct, load_rules() if rules is None else rules)
    return given.to_frame().join(classes, on="name", how="left", maintain_order="left")


class _ClassCache:
    """The classes of the names that one rule set has classified in this process.

    The runs of a comparison and the files of a sweep have nearly the same names. Without ``rules``
    they are traceana's own, and earlier processes' classes are used too.
    """

    def __init__(self, rules: RuleSet | None) -> None:
        self._rules = rules
        kept = pl.DataFrame(schema=CLASS_SCHEMA) if rules is not None else kept_classes()
        # Replaced as one, so that threads may classify at the same time.
        self._kept = {name: row for row, name in enumerate(kept["name"])}, kept
        self._unsaved: list[pl.DataFrame] = []

    def classes_of(self, names: pl.Series) -> pl.DataFrame:
        """Return the classes of ``names``, which is not empty and has no null."""
        row_of_name, classes = self._kept
        texts = names.to_list()
        new = list(dict.fromkeys(name for name in texts if name not in row_of_name))
        if new:
            rules = load_rules() if self._rules is None else self._rules
            added = _classify_distinct(pl.Series("name", new, dtype=pl.String), rules)
            row_of_new = {name: row for row, name in enumerate(new, classes.height)}
            row_of_name = {**row_of_name, **row_of_new}
            classes = pl.concat([classes, added], rechunk=True)
            if classes["name"].estimated_size() <= _MOST_KEPT:
                self._kept = row_of_name, classes
                self._unsaved.append(added)
        return classes[np.array([row_of_name[name] for name in texts], dtype=np.int64)]

    def save(self) -> None:
        """Keep what this process has classified for the next one."""
        if self._unsaved:
            added, self._unsaved = pl.concat(self._unsaved), []
            keep(self._kept[1], added)


def kept_classes() -> pl.DataFrame:
    """Return the kept classes, as :data:`CLASS_SCHEMA`: no rows if the file is damaged, or was
    written with other rules."""
    nothing = pl.DataFrame(schema=CLASS_SCHEMA)
    content = cache.read("classes", _FILE, _key())
    if content is None:
        return nothing
    try:
        return pl.DataFrame(msgspec.json.decode(content), schema=CLASS_SCHEMA)
    except (*UNDECODABLE, pl.exceptions.PolarsError):
        return nothing


def keep(classes: pl.DataFrame, added: pl.DataFrame) -> None:
    """Keep ``classes``, all of this process, or ``added`` if these are too many.

    Without a place to write, the next process classifies the names again.
    """
    for frame in (classes, added):
        if frame["name"].estimated_size() <= MOST_IN_FILE:
            # Two threads may have added the same names.
            kept = frame.unique("name", keep="first", maintain_order=True)
            content = msgspec.json.encode(kept.to_dict(as_series=False))
            cache.write("classes", _FILE, _key(), content)
            return


def _key() -> str:
    """Return what decides on a class: polars, the rules and the code that applies them."""
    return f"{pl.__version__}\n{_digest_of_code()}"


@functools.cache
def _digest_of_code() -> str:
    classify = resources.files("traceana.enrich") / "classify"
    return digest(
        chain(
            [(resources.files("traceana.columns") / "distinct.py").read_bytes()],
            [(resources.files("traceana.trace") / "taxonomy.py").read_bytes()],
            *map(code_in, (classify, classify / "rules")),
        )
    )


# The rules of users are read anew for each trace: kept classes belong to one rule set.
_cache_of = functools.lru_cache(maxsize=1)(_ClassCache)


@functools.cache
def _own_cache() -> _ClassCache:
    return _ClassCache(None)


def keep_classes() -> None:
    """Keep the classes of names that are new to this user, so that the next process finds them."""
    # A bundle, or rules of the user's: nothing was classified by traceana's own alone.
    if _own_cache.cache_info().currsize:
        _own_cache().save()


class Explanation(msgspec.Struct, frozen=True):
    """The class of one name, and the rule that decided it.

    ``also_matched`` are the ids of later rules that match too, in their order.
    """

    name: str
    head: str
    rule: str
    reason: str
    file: str
    also_matched: tuple[str, ...]
    columns: Mapping[str, ClassValue | None]


def explain(name: str, rules: RuleSet | None = None) -> Explanation:
    """Return the class of ``name`` by ``rules`` (default: traceana's own), with its reason."""
    chosen = load_rules() if rules is None else rules
    names = canonical(pl.Series("name", [name], dtype=pl.String))
    heads = heads_of(names)
    matched = list(compress(chosen.rules, matches(chosen.rules, names, heads)))
    row = classify_names([name], chosen).row(0, named=True)
    deciding = matched[0]
    return Explanation(
        name=name,
        head=heads[0],
        rule=deciding.id,
        reason=deciding.reason,
        file=deciding.file,
        also_matched=tuple(rule.id for rule in matched[1:]),
        columns={key: value for key, value in row.items() if key not in ("name", "rule")},
    )


def _classify_distinct(names: pl.Series, rules: RuleSet) -> pl.DataFrame:
    texts = canonical(names)
    heads = heads_of(texts)
    columns = {name: [rule.columns.get(name) for rule in rules.rules] for name in CLASS_COLUMNS}
    class_of_rule = pl.DataFrame(columns, schema=CLASS_COLUMNS).with_columns(
        rule=pl.Series([rule.id for rule in rules.rules], dtype=pl.String)
    )
    # The first rule that matches a name decides; the last rule matches all.
    deciding = np.full(len(texts), len(rules.rules) - 1, dtype=np.int64)
    undecided = _UndecidedNames(texts, heads)
    for first in range(0, len(rules.rules), _AT_ONCE):
        batch = rules.rules[first : first + _AT_ONCE]
        for position, rows in enumerate(undecided.matching(batch), first):
            deciding[undecided.decide(rows)] = position
        undecided.forget_decided()
    classes = class_of_rule[deciding]
    completed = _complete(classes, texts, heads, rules.attributes).with_columns(name=names)
    family = pl.col("algorithm").replace_strict(FAMILY_OF_ALGORITHM, default=None)
    return completed.with_columns(family=family.cast(pl.String)).select(list(CLASS_SCHEMA))


def matches(rules: Sequence[Rule], names: pl.Series, heads: pl.Series) -> list[bool]:
    """Return whether each of ``rules`` matches any of ``names``, whose heads are ``heads``."""
    return [len(rows) > 0 for rows in _UndecidedNames(names, heads).matching(rules)]


class _UndecidedNames:
    """The names that are not decided yet, grouped by their heads.

    Most rules match heads, and there are far fewer heads than names. A head is dropped as soon as
    all its names are decided.
    """

    def __init__(self, names: pl.Series, heads: pl.Series) -> None:
        self._names = names
        self._undecided = np.ones(len(names), dtype=np.bool_)
        self._heads = heads.unique(maintain_order=True).rename("head")
        positions = self._heads.to_frame().with_row_index("position")
        head_of_name = (
            heads.rename("head")
            .to_frame()
            .join(positions, on="head", how="left", maintain_order="left")["position"]
            .cast(pl.Int64)
            .to_numpy()
        )
        self._rows = np.argsort(head_of_name, kind="stable")  # rows of `names`, head by head
        self._names_of_head = np.bincount(head_of_name, minlength=len(self._heads))
        self._collect_texts()

    def matching(self, rules: Sequence[Rule]) -> list[Indices]:
        """Return the rows of the undecided names that each of ``rules`` matches.

        All patterns are compiled and run in one query, so that they run in parallel.
        """
        rows = self._matching_heads(rules)
        searches = {}
        for i, rule in enumerate(rules):
            if not len(rows[i]) or (rule.name is None and rule.unless is None):
                continue
            name = pl.col("name").str
            matches_name = pl.lit(True) if rule.name is None else name.contains(rule.name)
            if rule.unless is not None:
                matches_name &= ~name.contains(rule.unless)
            names = self._names.gather(rows[i]).alias("name")
            searches[i] = pl.LazyFrame([names]).select(matches_name)
        for i, matched in zip(searches, pl.collect_all(list(searches.values())), strict=True):
            rows[i] = rows[i][matched.to_series().to_numpy()]
        return rows

    def _matching_heads(self, rules: Sequence[Rule]) -> list[Indices]:
        """Return, for each of ``rules``, the rows of the undecided names whose heads match."""
        rows = []
        patterns = {}
        for i, rule in enumerate(rules):
            by_head = rule.head is None or self._all_heads.may_match(rule.head)
            possible = by_head and (rule.name is None or self._all_names.may_match(rule.name))
            rows.append(self._rows if possible else self._rows[:0])
            if rule.head is not None and len(rows[i]):
                patterns[str(i)] = rule.head
        if not patterns:
            return rows
        matched = self._heads.to_frame().select(
            pl.col("head").str.contains(pattern).alias(i) for i, pattern in patterns.items()
        )
        for column in matched:
            name_matched = np.repeat(column.to_numpy(), self._names_of_head)
            rows[int(column.name)] = self._rows[name_matched]
        return rows

    def decide(self, rows: Indices) -> Indices:
        """Mark ``rows`` as decided and return those that were undecided."""
        new = rows[self._undecided[rows]]
        self._undecided[new] = False
        return new

    def forget_decided(self) -> None:
        """Drop the heads without undecided names."""
        kept = self._undecided[self._rows]
        head = np.repeat(np.arange(len(self._heads)), self._names_of_head)[kept]
        names_of_head = np.bincount(head, minlength=len(self._heads))
        self._rows = self._rows[kept]
        kept_heads = names_of_head > 0
        self._names_of_head = names_of_head[kept_heads]
        if not kept_heads.all():
            self._heads = self._heads.filter(pl.Series(kept_heads))
            self._collect_texts()

    def _collect_texts(self) -> None:
        """Join the texts of the undecided names: fewer names need fewer patterns."""
        self._all_heads = SearchedText(self._heads)
        self._all_names = SearchedText(self._names.gather(self._rows))


def _complete(
    classes: pl.DataFrame, names: pl.Series, heads: pl.Series, attributes: Sequence[Attribute]
) -> pl.DataFrame:
    """Return ``classes`` with nulls filled by the first attribute that finds a value in the name.

    ``classes`` has the class columns and one row per distinct name. ``names`` are these names in
    canonical spelling, ``heads`` are their heads.
    """
    parts = {"name": names, "head": heads}
    texts_of_part = {part: SearchedText(texts) for part, texts in parts.items()}
    category, library = _ValueRows(classes["category"]), _ValueRows(classes["library"])
    columns = {name: classes[name] for name in {attribute.column for attribute in attributes}}
    empty = {name: column.is_null().to_numpy() for name, column in columns.items()}
    for attribute in attributes:
        name, pattern = attribute.column, attribute.pattern
        if not texts_of_part[attribute.name_part].may_match(pattern):
            continue
        of_categories = category.having(attribute.categories)
        of_libraries = library.having(attribute.libraries)
        rows = np.flatnonzero(empty[name] & of_categories & of_libraries)
        texts = parts[attribute.name_part].gather(rows)
        if len(rows) and SearchedText(texts).may_match(pattern):
            value = _value_in(pl.col("text"), attribute).alias("value")
            read = texts.alias("text").to_frame().select(value)["value"]
            columns[name] = columns[name].clone().scatter(rows, read)
            empty[name][rows] = read.is_null().to_numpy()
    return classes.with_columns(**columns)


class _ValueRows:
    """Lookup of the rows of a column that have one of a few values."""

    def __init__(self, column: pl.Series) -> None:
        distinct = column.unique(maintain_order=True)
        self._position = {value: position for position, value in enumerate(distinct)}
        self._code_of_row = column.replace_strict(
            distinct, pl.Series(range(len(distinct)), dtype=pl.Int32), return_dtype=pl.Int32
        ).to_numpy()

    def having(self, values: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which rows have one of ``values``; all rows if ``values`` is empty."""
        wanted = np.full(len(self._position), not values, dtype=np.bool_)
        for value in values:
            if value in self._position:
                wanted[self._position[value]] = True
        chosen: npt.NDArray[np.bool_] = wanted[self._code_of_row]
        return chosen


def _value_in(text: pl.Expr, attribute: Attribute) -> pl.Expr:
    """Return the value that ``attribute`` finds in ``text``, null if it finds none."""
    if isinstance(attribute.value, bool) or "$" not in attribute.value:
        return pl.when(text.str.contains(attribute.pattern)).then(pl.lit(attribute.value))
    pieces: list[pl.Expr] = []
    for number, piece in enumerate(_GROUP.split(attribute.value)):
        if number % 2:
            pieces.append(text.str.extract(attribute.pattern, int(piece)).str.to_lowercase())
        elif piece:
            pieces.append(pl.lit(piece))
    value = pl.concat_str(pieces)
    if attribute.values:
        return value.replace_strict(dict(attribute.values), default=None, return_dtype=pl.String)
    return value


WORDS_FILE: Final = "words.json"
"""The words of the patterns of traceana's own rules, in their folder."""

_LONGEST_TEXT: Final = 200_000
"""Bytes of text above which nearly all words occur, so that all patterns are compiled."""


@functools.cache
def _words_of_patterns() -> Mapping[str, Sequence[Sequence[str]]]:
    """Return {pattern: sets of words}: every match of a pattern contains a word of each set."""
    file = resources.files("traceana.enrich.classify") / "rules" / WORDS_FILE
    return msgspec.json.decode(file.read_bytes(), type=dict[str, list[list[str]]])


class SearchedText:
    """Texts that patterns are matched against."""

    def __init__(self, texts: pl.Series) -> None:
        """Join and case-fold ``texts``."""
        short = texts.estimated_size() <= _LONGEST_TEXT
        self._text = "\n".join(texts.to_list()).casefold() if short else None

    def may_match(self, pattern: str) -> bool:
        """Return whether ``pattern`` can match any of the texts."""
        text = self._text
        if text is None:
            return True
        words = _words_of_patterns().get(pattern, ())
        return all(any(word in text for word in alternatives) for alternatives in words)


_INTEGER: Final = r"(?:unsigned |signed )?(?:int|long|long long|short|char|bool|size_t)"
_REWRITES: Final = (
    (rf"\b{_INTEGER}=(-?[0-9]+)", "$1"),
    (rf"\({_INTEGER}\)(-?[0-9]+)", "$1"),
    (r"\b([A-Za-z_][0-9A-Za-z_:]*)=(-?[0-9]+)\b", "($1)$2"),
)
_REPLACEMENTS: Final = {
    "<unnamed>": "(anonymous namespace)",
    " >": ">",
    " ,": ",",
}
_EVALUATES: Final = "autograd::engine::evaluate_function: "
_CONST: Final = r" const\b|\bconst "
_MARKS: Final = ["<unnamed>", " >", " ,", "=", "(int)", "(bool)", " int)", "(long)", " long)"]


def canonical(names: pl.Series) -> pl.Series:
    """Return ``names`` as CUPTI's demangler prints them, in the same order.

    CUPTI prints ``kernel<2, (Op)0, true>``, nsys ``kernel<(int)2, (Op)0, (bool)1>``, nvprof
    ``kernel<int=2, Op=0, bool=1>``, and c++filt ``kernel<Other<2> >``. In names of Eigen, CUPTI
    prints ``const`` after a type and nsys before it, so ``const`` is removed. The prefix that the
    autograd engine adds to the names of its nodes is removed too.
    """
    marked = names.str.contains_any(_MARKS)
    if marked.any():
        variant = names.filter(marked).str.replace_many(_REPLACEMENTS)
        for pattern, replacement in _REWRITES:
            variant = variant.str.replace_all(pattern, replacement)
        names = names.clone().scatter(marked.arg_true(), variant)
    names = names.str.strip_prefix(_EVALUATES)
    expressions = names.str.contains("Eigen::")
    if expressions.any():
        bare = names.filter(expressions).str.replace_all(_CONST, "")
        names = names.clone().scatter(expressions.arg_true(), bare)
    return names


# Spellings of the unnamed namespace: c++filt and CUPTI, nsys, clang, and nvcc's per-file one.
_ANONYMOUS: Final = (
    r"\(anonymous namespace\)|<unnamed>|\(anonymous\)|\{anonymous\}|\{unnamed\}"
    r"|_GLOBAL__N__\w+|_INTERNAL_[0-9a-f]+_\w+"
)
_RETURN_TYPE: Final = (
    r"^(?:(?:static|typename|inline|extern|const) )*"
    r"(?:(?:std|cuda::std)(?:::__\w+)?::enable_if(?:_t)?<.*?>(?:::type)? "
    r"|(?:void|bool|int|unsigned int|float|double|__half)\*? )"
)
_FILE_VARIABLE: Final = r"^_INTERNAL_"
"""Device variables of a source file, which nvcc puts into a namespace named after the file."""
_MANGLED: Final = re.compile(r"_Z(?:N[KVr]*|L)?")
_SOURCE_NAME: Final = re.compile(r"([1-9]\d{0,3})|(S[at])|(12_GLOBAL__N_)")


def heads_of(names: pl.Series) -> pl.Series:
    """Return the head of each of ``names``: its qualified function name.

    ``void at::native::(anonymous namespace)::elementwise_kernel<128, 4, …>(int, …)`` has the head
    ``at::native::{anon}::elementwise_kernel``. An unnamed namespace at the start is left out, but
    for device variables. Most rules match heads only: there are far fewer heads than names, and the
    type of a template argument must not match as the kernel's own name.
    """
    heads = (
        names.str.replace_all(_ANONYMOUS, "{anon}")
        .str.replace(_RETURN_TYPE, "")
        .str.extract(r"(?s)^(.[^<(]*)", 1)
        .str.strip_suffix(".kd")
        .str.strip_chars()
        .str.replace(r"^(?:\{anon\}::)+", "")
        .fill_null("")
    )
    variables = names.str.contains(_FILE_VARIABLE)
    heads = heads.zip_with(~variables, "{anon}::" + heads) if variables.any() else heads
    mangled = names.str.starts_with("_Z")
    if not mangled.any():
        return heads
    decoded = names.filter(mangled).map_elements(mangled_head, return_dtype=pl.String)
    return heads.scatter(mangled.arg_true(), decoded)


def mangled_head(name: str) -> str:
    """Return the qualified function of an Itanium-mangled name, or ``name`` if it is not mangled.

    Only the leading source names are decoded (``_ZN2at6native3fooI…`` is ``at::native::foo``), up
    to the first template arguments.
    """
    start = _MANGLED.match(name)
    if start is None:
        return name
    position, parts = start.end(), []
    while source_name := _SOURCE_NAME.match(name, position):
        position = source_name.end()
        if source_name[2]:
            parts.append("std")
            continue
        length = int(source_name[1])
        part = name[position : position + length]
        position += length
        parts.append("{anon}" if part.startswith("_GLOBAL__N_") else part)
    while parts[1:] and parts[0] == "{anon}":
        parts = parts[1:]
    return "::".join(parts) or name
