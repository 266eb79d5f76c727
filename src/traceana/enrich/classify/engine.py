"""Application of a rule set to names: each rule to all undecided distinct names at once.

Patterns run in polars' Rust regular expressions, whose time is linear in the text for every
pattern. Names are only searched; they are never used as patterns.

The literals that a text must contain for a pattern to match. Compiling a pattern takes a thousand
times longer than searching for a literal, and most rules match no name of a given trace. So a
pattern is compiled only if one of its literals occurs.

The canonical spelling and the head of a kernel's name; rules are matched against these texts. They
are used for matching only. Tables keep names as recorded by the profiler.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
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
        return (_of_own_rules() if rules is None else _of_rules(rules)).of(given)
    distinct = given.unique(maintain_order=True)
    classes = _classify_distinct(distinct, load_rules() if rules is None else rules)
    return given.to_frame().join(classes, on="name", how="left", maintain_order="left")


class _Classified:
    """The classes of the names that one rule set has classified in this process.

    The runs of a comparison and the files of a sweep have nearly the same names. Without ``rules``
    they are traceana's own, and earlier processes' classes are used too.
    """

    def __init__(self, rules: RuleSet | None) -> None:
        self._rules = rules
        known = pl.DataFrame(schema=CLASS_SCHEMA) if rules is not None else kept_classes()
        # Replaced as one, so that threads may classify at the same time.
        self._kept = {text: row for row, text in enumerate(known["name"])}, known
        self._unsaved: list[pl.DataFrame] = []

    def of(self, names: pl.Series) -> pl.DataFrame:
        """Return the classes of ``names``, which is not empty and has no null."""
        rows, classes = self._kept
        texts = names.to_list()
        fresh = list(dict.fromkeys(text for text in texts if text not in rows))
        if fresh:
            rules = load_rules() if self._rules is None else self._rules
            added = _classify_distinct(pl.Series("name", fresh, dtype=pl.String), rules)
            rows = {**rows, **{text: row for row, text in enumerate(fresh, classes.height)}}
            classes = pl.concat([classes, added], rechunk=True)
            if classes["name"].estimated_size() <= _MOST_KEPT:
                self._kept = rows, classes
                self._unsaved.append(added)
        return classes[np.array([rows[text] for text in texts], dtype=np.int64)]

    def save(self) -> None:
        """Keep what this process has classified for the next one."""
        if self._unsaved:
            added, self._unsaved = pl.concat(self._unsaved), []
            keep(self._kept[1], added)


def kept_classes() -> pl.DataFrame:
    """Return the kept classes, as :data:`CLASS_SCHEMA`: no rows where the file cannot be used.

    It cannot where it is damaged, or was written with other rules.
    """
    nothing = pl.DataFrame(schema=CLASS_SCHEMA)
    content = cache.read("classes", _FILE, _key())
    try:
        return (
            nothing
            if content is None
            else pl.DataFrame(msgspec.json.decode(content), schema=CLASS_SCHEMA)
        )
    except (*UNDECODABLE, pl.exceptions.PolarsError):
        return nothing


def keep(classes: pl.DataFrame, added: pl.DataFrame) -> None:
    """Keep ``classes``, all that this process knows, or ``added`` where these are too many.

    Without a place to write, the next process classifies the names again.
    """
    found = (one for one in (classes, added) if one["name"].estimated_size() <= MOST_IN_FILE)
    if (chosen := next(found, None)) is None:
        return
    # Two threads may have added the same names.
    chosen = chosen.unique("name", keep="first", maintain_order=True)
    cache.write("classes", _FILE, _key(), msgspec.json.encode(chosen.to_dict(as_series=False)))


def _key() -> str:
    """Return what decides on a class: polars, the rules and the code that applies them."""
    return f"{pl.__version__}\n{_state()}"


@functools.cache
def _state() -> str:
    classify = resources.files("traceana.enrich") / "classify"
    return digest(
        chain(
            [(resources.files("traceana.columns") / "distinct.py").read_bytes()],
            [(resources.files("traceana.trace") / "taxonomy.py").read_bytes()],
            *map(code_in, (classify, classify / "rules")),
        )
    )


# The rules of users are read anew for each trace: kept classes belong to one rule set.
_of_rules = functools.lru_cache(maxsize=1)(_Classified)


@functools.cache
def _of_own_rules() -> _Classified:
    return _Classified(None)


def keep_classes() -> None:
    """Keep the classes of names that are new to this user, so that the next process finds them."""
    # A bundle, or rules of the user's: nothing was classified by traceana's own alone.
    if _of_own_rules.cache_info().currsize:
        _of_own_rules().save()


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
    deciding = _deciding_rules(texts, heads, rules.rules)
    classes = _rule_table(rules.rules)[deciding]
    completed = _complete(classes, texts, heads, rules.attributes).with_columns(name=names)
    family = pl.col("algorithm").replace_strict(FAMILY_OF_ALGORITHM, default=None)
    return completed.with_columns(family=family.cast(pl.String)).select(list(CLASS_SCHEMA))


def _deciding_rules(names: pl.Series, heads: pl.Series, rules: Sequence[Rule]) -> Indices:
    """Return the position of the first rule that matches each name; the last rule matches all.

    ``names`` are in canonical spelling, ``heads`` are their heads.
    """
    deciding = np.full(len(names), len(rules) - 1, dtype=np.int64)
    undecided = _Undecided(names, heads)
    for first in range(0, len(rules), _AT_ONCE):
        for position, rows in enumerate(undecided.matching(rules[first : first + _AT_ONCE]), first):
            deciding[undecided.decide(rows)] = position
        undecided.forget_decided()
    return deciding


def matches(rules: Sequence[Rule], names: pl.Series, heads: pl.Series) -> list[bool]:
    """Return whether each of ``rules`` matches any of ``names``, whose heads are ``heads``."""
    return [len(rows) > 0 for rows in _Undecided(names, heads).matching(rules)]


class _Undecided:
    """The names that are not decided yet, grouped by their heads.

    Most rules match heads, and there are far fewer heads than names. A head is dropped as soon as
    all its names are decided.
    """

    def __init__(self, names: pl.Series, heads: pl.Series) -> None:
        self._names = names
        self._open = np.ones(len(names), dtype=np.bool_)
        distinct, head_of = _distinct(heads)
        self._rows = np.argsort(head_of, kind="stable")  # rows of `names`, head by head
        self._counts = np.bincount(head_of, minlength=len(distinct))
        self._heads = distinct
        self._collect_words()

    def matching(self, rules: Sequence[Rule]) -> list[Indices]:
        """Return the rows of the undecided names that each of ``rules`` matches.

        All patterns are compiled and run in one query, so that they run in parallel.
        """
        rows = self._by_head(rules)
        searches = {
            i: pl.LazyFrame([self._names.gather(rows[i]).alias("name")]).select(_on_name(rule))
            for i, rule in enumerate(rules)
            if len(rows[i]) and (rule.name is not None or rule.unless is not None)
        }
        for i, found in zip(searches, pl.collect_all(list(searches.values())), strict=True):
            rows[i] = rows[i][found.to_series().to_numpy()]
        return rows

    def decide(self, rows: Indices) -> Indices:
        """Mark ``rows`` as decided and return those that were undecided."""
        fresh = rows[self._open[rows]]
        self._open[fresh] = False
        return fresh

    def forget_decided(self) -> None:
        """Drop the heads without undecided names."""
        still = self._open[self._rows]
        group = np.repeat(np.arange(len(self._counts)), self._counts)[still]
        counts = np.bincount(group, minlength=len(self._counts))
        self._rows = self._rows[still]
        live = counts > 0
        self._counts = counts[live]
        if not live.all():
            self._heads = self._heads.filter(pl.Series(live))
            self._collect_words()

    def _collect_words(self) -> None:
        """Note the text of the undecided names: fewer names need fewer patterns."""
        self._in_heads = Words(self._heads)
        self._in_names = Words(self._names.gather(self._rows))

    def _by_head(self, rules: Sequence[Rule]) -> list[Indices]:
        """Return, for each of ``rules``, the rows of the undecided names whose heads match."""
        none = np.empty(0, dtype=np.int64)
        rows = [self._rows if self._can_match(rule) else none for rule in rules]
        searched = {
            str(i): rule.head
            for i, rule in enumerate(rules)
            if rule.head is not None and len(rows[i])
        }
        if not searched:
            return rows
        heads = self._heads.alias("head").to_frame()
        found = heads.select(
            pl.col("head").str.contains(pattern).alias(i) for i, pattern in searched.items()
        )
        for column in found:
            rows[int(column.name)] = self._rows[np.repeat(column.to_numpy(), self._counts)]
        return rows

    def _can_match(self, rule: Rule) -> bool:
        return (rule.head is None or self._in_heads.allow(rule.head)) and (
            rule.name is None or self._in_names.allow(rule.name)
        )


def _on_name(rule: Rule) -> pl.Expr:
    name = pl.col("name").str
    matched = pl.lit(True) if rule.name is None else name.contains(rule.name)
    return matched if rule.unless is None else matched & ~name.contains(rule.unless)


def _distinct(texts: pl.Series) -> tuple[pl.Series, Indices]:
    """Return the distinct texts, and the position of each text among them."""
    distinct = texts.unique(maintain_order=True)
    table = pl.DataFrame({"text": distinct}).with_row_index("position")
    joined = (
        texts.rename("text").to_frame().join(table, on="text", how="left", maintain_order="left")
    )
    return distinct, joined["position"].cast(pl.Int64).to_numpy()


def _rule_table(rules: Sequence[Rule]) -> pl.DataFrame:
    """Return one row per rule, with the columns that it sets."""
    columns = {name: [rule.columns.get(name) for rule in rules] for name in CLASS_COLUMNS}
    table = pl.DataFrame(columns, schema=CLASS_COLUMNS)
    return table.with_columns(rule=pl.Series([rule.id for rule in rules], dtype=pl.String))


def _complete(
    classes: pl.DataFrame, names: pl.Series, heads: pl.Series, attributes: Sequence[Attribute]
) -> pl.DataFrame:
    """Return ``classes`` with nulls filled by the first attribute that finds a value in the name.

    ``classes`` has the class columns and one row per distinct name. ``names`` are these names in
    canonical spelling, ``heads`` are their heads.
    """
    parts = {"name": names, "head": heads}
    words = {part: Words(texts) for part, texts in parts.items()}
    category, library = _Choice(classes["category"]), _Choice(classes["library"])
    columns = {name: classes[name] for name in {attribute.column for attribute in attributes}}
    empty = {name: column.is_null().to_numpy() for name, column in columns.items()}
    for attribute in attributes:
        name = attribute.column
        if not words[attribute.name_part].allow(attribute.pattern):
            continue
        wanted = empty[name] & category.among(attribute.categories)
        rows = np.flatnonzero(wanted & library.among(attribute.libraries))
        texts = parts[attribute.name_part].gather(rows)
        if len(rows) and Words(texts).allow(attribute.pattern):
            read = _reading(texts, attribute)
            columns[name] = columns[name].clone().scatter(rows, read)
            empty[name][rows] = read.is_null().to_numpy()
    return classes.with_columns(**columns)


class _Choice:
    """Lookup of the rows of a column that have one of a few values."""

    def __init__(self, column: pl.Series) -> None:
        distinct = column.unique(maintain_order=True)
        self._position = {value: position for position, value in enumerate(distinct)}
        self._codes = column.replace_strict(
            distinct, pl.Series(range(len(distinct)), dtype=pl.Int32), return_dtype=pl.Int32
        ).to_numpy()

    def among(self, values: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which rows have one of ``values``; all rows if ``values`` is empty."""
        wanted = np.full(len(self._position), not values, dtype=np.bool_)
        for value in values:
            if value in self._position:
                wanted[self._position[value]] = True
        chosen: npt.NDArray[np.bool_] = wanted[self._codes]
        return chosen


def _reading(texts: pl.Series, attribute: Attribute) -> pl.Series:
    """Return the value that ``attribute`` finds in each of ``texts``, null where it finds none."""
    text = pl.col("text")
    if isinstance(attribute.value, bool) or "$" not in attribute.value:
        value: pl.Expr = pl.when(text.str.contains(attribute.pattern)).then(pl.lit(attribute.value))
    else:
        value = _assembled(text, attribute)
    return texts.alias("text").to_frame().select(value.alias("value")).to_series()


def _assembled(text: pl.Expr, attribute: Attribute) -> pl.Expr:
    pieces: list[pl.Expr] = []
    for number, piece in enumerate(_GROUP.split(str(attribute.value))):
        if number % 2:
            pieces.append(text.str.extract(attribute.pattern, int(piece)).str.to_lowercase())
        elif piece:
            pieces.append(pl.lit(piece))
    value = pl.concat_str(pieces)
    if attribute.values:
        return value.replace_strict(dict(attribute.values), default=None, return_dtype=pl.String)
    return value


_TOKEN: Final = re.compile(
    r"\\(?:[pPuUx]\{[^}]*\}|b\{[a-z-]+\}|x[0-9a-fA-F]{2}|.)"  # an escape
    r"|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]"  # a set
    r"|\(\?[a-zA-Z-]+\)"  # flags
    r"|\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?"  # the start of a group
    r"|(?:[*+?]|\{\d+(?:,\d*)?\})\??"  # a repetition
    r"|[^\\\[\](){}|*+?^$.]+"  # letters
    r"|.",
    re.DOTALL,
)
_VERBOSE: Final = re.compile(r"\(\?[a-zA-Z]*x")
_PATTERN_MARKS: Final = frozenset("\\[](){}|*+?^$.")
_EDGES: Final = frozenset("bBAz<>")
_CLASSES: Final = frozenset("dDwWsSpPuUxantrfv0")

_SHORTEST: Final = 3
"""Shorter literals occur in nearly every text and exclude no pattern."""

_LONGEST_TEXT: Final = 200_000
"""Bytes of text above which nearly all literals occur, so that all patterns are compiled."""


class Words:
    """Texts that patterns are matched against."""

    def __init__(self, texts: pl.Series) -> None:
        """Join and case-fold ``texts``."""
        short = texts.estimated_size() <= _LONGEST_TEXT
        self._text = "\n".join(texts.to_list()).casefold() if short else None

    def allow(self, pattern: str) -> bool:
        """Return false if ``pattern`` cannot match any of the texts, else true."""
        if self._text is None:
            return True
        text = self._text
        return all(any(word in text for word in words) for words in literals(pattern))


@functools.lru_cache(maxsize=4096)
def literals(pattern: str) -> tuple[frozenset[str], ...]:
    """Return sets of case-folded words: every match of ``pattern`` contains a word of each set."""
    if _VERBOSE.search(pattern):
        return ()
    return _alternatives(iter(_TOKEN.findall(pattern)))


def _alternatives(tokens: Iterator[str]) -> tuple[frozenset[str], ...]:
    """Return the sets of words of the alternatives up to the end of the group.

    All sets of a single alternative; of several, one set with the rarest words of each.
    """
    branches: list[list[frozenset[str]]] = []
    found: list[frozenset[str]] = []
    run = ""  # the letters that follow each other
    group: tuple[frozenset[str], ...] = ()  # the sets of the group just read, which may be optional
    for token in tokens:
        kind = token[0]
        if kind in "*?" or token[:2] == "{0":
            run, group = run[:-1], ()
        if group:
            found += group
            group = ()
        if kind not in _PATTERN_MARKS:
            run += token
        elif kind == "\\" and token[1] not in _CLASSES:
            run += "" if token[1] in _EDGES else token[1:]
        elif kind not in "^$" and not (kind == "(" and token[-1] == ")"):  # edges and flags
            if len(run) >= _SHORTEST:
                found.append(frozenset((run.casefold(),)))
            run = ""
            if kind == "(":
                group = _alternatives(tokens)
            elif kind == "|":
                branches.append(found)
                found = []
            elif kind == ")":
                break
    found += group
    if len(run) >= _SHORTEST:
        found.append(frozenset((run.casefold(),)))
    if not branches:
        return tuple(found)
    branches.append(found)
    if not all(branches):
        return ()
    return (frozenset().union(*map(_rarest, branches)),)


def _rarest(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the set whose shortest word is longest: long words are rare."""
    return sets[0] if len(sets) == 1 else max(sets, key=lambda words: min(map(len, words)))


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
    while found := _SOURCE_NAME.match(name, position):
        position = found.end()
        if found[2]:
            parts.append("std")
            continue
        length = int(found[1])
        part = name[position : position + length]
        position += length
        parts.append("{anon}" if part.startswith("_GLOBAL__N_") else part)
    while parts[1:] and parts[0] == "{anon}":
        parts = parts[1:]
    return "::".join(parts) or name
