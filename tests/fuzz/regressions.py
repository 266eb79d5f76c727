# One case a line.
# ruff: noqa: E501
"""Inputs that once broke the promise, each made from a seed: ``python -m tests.fuzz.regressions``.

They are made by code, not kept as files: what is wrong with each can be read here.
"""

from __future__ import annotations

import os

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from tests.fuzz import space
from tests.fuzz.campaign import Campaign
from tests.fuzz.mutations import Input
from tests.fuzz.space import Field
from tests.fuzz.table_edits import with_cells

Change = Callable[[bytes], bytes | None]


@dataclass(frozen=True)
class Case:
    """A seed with one of its files changed.

    ``commands`` is whether every command is run on it: reading was right, and a command failed.
    Where such changes are in columns of their own, one input has all of them for the commands, which
    take a hundred times as long as reading.
    """

    name: str
    format: str
    seed: str
    change: Change
    file: str = ""
    damage: bool = False
    commands: bool = False


def _kineto(change: Callable[[dict[str, Any]], object]) -> Change:
    """Return the change of a JSON object, given as Python's."""

    def changed(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return changed


def _events(cat: str, **fields: Any) -> Change:
    """Set fields of all events of a category, or those of their arguments that they have."""

    def change(document: dict[str, Any]) -> None:
        for event in document["traceEvents"]:
            if event.get("cat") == cat:
                for name, value in fields.items():
                    inside = event["args"] if name in event.get("args", ()) else event
                    inside[name] = value

    return _kineto(change)


def _all(*changes: Callable[[bytes], bytes | None]) -> Change:
    """Return one change after the other."""

    def changed(content: bytes) -> bytes | None:
        result: bytes | None = content
        for change in changes:
            if result is None or (after := change(result)) == result:
                raise ValueError("a change of several changes nothing")
            result = after
        return result

    return changed


def _text(old: str, new: str, count: int = -1) -> Change:
    return lambda content: content.replace(old.encode(), new.encode(), count)


def _sql(*statements: str) -> Change:
    """Return the change of a database by statements."""

    def changed(content: bytes) -> bytes:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.deserialize(content)
            connection.execute("PRAGMA writable_schema = ON")
            for statement in statements:
                connection.execute(statement)
            return connection.serialize()

    return changed


def _bytes(begin: float, size: int, value: bytes) -> Change:
    """Replace ``size`` bytes from the part ``begin`` of the file on by ``value`` repeated."""

    def changed(content: bytes) -> bytes:
        at = int(begin * len(content))
        return content[:at] + value * (size // len(value)) + content[at + size :]

    return changed


def _exchanged(one: int, other: int) -> Change:
    """Exchange two bytes."""

    def changed(content: bytes) -> bytes:
        bytes_ = bytearray(content)
        bytes_[one], bytes_[other] = bytes_[other], bytes_[one]
        return bytes(bytes_)

    return changed


def _cut(end: float) -> Change:
    return lambda content: content[: int(end * len(content))]


def _between_events(content: bytes) -> bytes:
    """Cut a bare array exactly behind an event's comma."""
    return content[: content.rindex(b"}, {", 0, len(content) // 2) + 2]


def _twice(content: bytes) -> bytes:
    document = json.loads(content)
    events = document["traceEvents"]
    document["traceEvents"] = events[: len(events) // 2]
    rest = json.dumps(events[len(events) // 2 :])
    return f'{json.dumps(document)[:-1]}, "traceEvents": {rest}}}'.encode()


def _nested(depth: int, opening: str = "[", closing_: str = "]") -> str:
    return opening * depth + closing_ * depth


def _fields(kind: str, change: Callable[[Field], None]) -> Change:
    """Return the change of every field of a kind in a space."""

    def changed(content: bytes) -> bytes:
        fields = space.parsed(content)
        for _, field in space.walked(fields):
            if field.kind == kind:
                change(field)
        return space.encoded(fields)

    return changed


def _raw(tag: bytes, size: int) -> Callable[[Field], None]:
    def change(field: Field) -> None:
        field.raw = tag + bytes(size)

    return change


def _without_names(content: bytes) -> bytes:
    fields = space.parsed(content)
    for holder, field in list(space.walked(fields)):
        if field.kind == "event entry":
            holder.remove(field)
    return space.encoded(fields)


def _as_numbers(content: bytes) -> bytes:
    """Write the texts of events' stats as integers, with the numbers of their fields."""
    fields = space.parsed(content)
    for event in [field for _, field in space.walked(fields) if field.kind == "event"]:
        for _, field in space.walked(event.value if isinstance(event.value, list) else []):
            if (field.number, field.wire) == (5, 2):
                field.raw = space.varint(5 << 3) + space.varint(2**60)
    return space.encoded(fields)


def _with_event(content: bytes) -> Change:
    """Return the change of the first event to one with ``content``."""

    def change(space_: bytes) -> bytes:
        fields = space.parsed(space_)
        event = next(field for _, field in space.walked(fields) if field.kind == "event")
        event.raw = space.varint(4 << 3 | 2) + space.varint(len(content)) + content
        return space.encoded(fields)

    return change


KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
CASES: Final = (
    # JSON
    Case("traceEvents twice", "kineto", "gpu", _twice, damage=True),
    Case("bare array cut between two events", "kineto", "array", _between_events, damage=True),
    Case("sums beyond int64", "kineto", "gpu", _events("kernel", dur=4.6e15), commands=True),
    Case("time of int64's maximum", "kineto", "gpu", _events("kernel", ts=2**63 - 1), commands=True),
    Case("time that is no number", "kineto", "gpu", _events("kernel", ts=True)),
    Case("flow without a time", "kineto", "gpu", _events("fwdbwd", ts=True)),
    Case("grid beyond 32 bits", "kineto", "gpu", _events("kernel", grid=[2**40, 2**63, 1])),
    Case("registers beyond 32 bits", "kineto", "gpu", _events("kernel", **{"registers per thread": 2**40})),
    Case("device beyond 32 bits", "kineto", "gpu", _events("kernel", pid=2**40, device=2**40), commands=True),
    Case("numbers of steps far apart", "kineto", "gpu", _text("ProfilerStep#1", "ProfilerStep#1000000000")),
    Case("names of 15,000 odd letters", "kineto", "gpu", _events("kernel", name="\x12\xe9\u0301" * 5_000)),
    Case("epoch that no clock shows", "kineto", "gpu", _kineto(lambda whole: whole.update(baseTimeNanoseconds=2**63))),
    Case("grid, registers, names, steps and epoch of the last five", "kineto", "gpu", _all(_events("kernel", grid=[2**40, 2**63, 1], name="\x12\xe9\u0301" * 5_000, **{"registers per thread": 2**40}), _text("ProfilerStep#1", "ProfilerStep#1000000000"), _kineto(lambda whole: whole.update(baseTimeNanoseconds=2**63))), commands=True),
    Case("nested event", "kineto", "gpu", _text('"args":{', f'"x":{_nested(20_000)},"args":{{"y":{_nested(20_000)},', 5)),
    Case("nested head", "kineto", "gpu", lambda content: b'{"x": ' + _nested(50_000).encode() + b", " + content[1:]),
    Case("nested head of objects", "kineto", "gpu", lambda content: b'{"x": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b", " + content[1:]),
    Case("nested tail", "kineto", "gpu", lambda content: content[:-1] + b', "x": ' + _nested(50_000).encode() + b"}"),
    Case("nested name", "kineto", "gpu", _text('"name":"ac2g"', f'"name":{_nested(5_000)}')),
    Case("hole in compressed JSON", "kineto", "cpu-ranges-gz", _bytes(0.5, 64, b"\0"), damage=True),
    Case("cut compressed JSON", "kineto", "gpu-gz", _cut(0.7), damage=True),
    Case("rank beyond 32 bits", "ranks", "kineto", _text('"rank":0', '"rank":9007199254740993'), file="rank0.json"),
    Case("world size beyond 32 bits", "ranks", "kineto", _text('"world_size":2', '"world_size":2147483649'), file="rank0.json"),
    Case("rank and world size of the last two", "ranks", "kineto", _all(_text('"rank":0', '"rank":9007199254740993'), _text('"world_size":2', '"world_size":2147483649')), file="rank0.json", commands=True),
    Case("nested rank", "ranks", "kineto", _text('"rank":0', f'"rank":{_nested(900)}'), file="rank0.json"),
    Case("nested stream", "kineto", "gpu", _events("kernel", stream=json.loads(_nested(300)))),
    Case("rank whose collectives are lost", "ranks", "kineto", lambda content: content[:15004] + content[15805:], file="rank1.json", damage=True, commands=True),
    Case("unrecognizable rank", "ranks", "kineto", _bytes(0, 600, b"\x87"), file="rank0.json", damage=True),
    Case("argument that is no UTF-8", "chrome", "keras", lambda content: content.replace(b'"args":{', b'"args":{"x":"\xf4at",', 1)),
    Case("span without a start", "chrome", "keras", _kineto(lambda whole: [event.pop("ts", None) for event in whole["traceEvents"][40:50]])),
    Case("span without a duration", "chrome", "keras", _text('"dur":', '"x":')),
    Case("span with a start that is no number", "chrome", "keras", lambda content: re.sub(rb'"ts":[\d.]+', b'"ts":"x"', content)),
    Case("later steps without a duration", "chrome", "keras", lambda content: re.sub(rb'"dur":[\d.]+(,"name":"train","args":{"step_num":"[12]")', rb'"dur":0\1', content), commands=True),
    Case("spans without a name", "chrome", "jax", _kineto(lambda whole: [event.update(name=None) for event in whole["traceEvents"] if event.get("ph") == "X"]), commands=True),
    Case("operators of MXNet without a name", "mxnet", "mxnet", _kineto(lambda whole: [event.pop("name", None) for event in whole["traceEvents"] if event.get("ph") == "B"]), commands=True),
    Case("span of a huge duration", "chrome", "keras", lambda content: re.sub(rb'"dur":[\d.e-]+', b'"dur":-9223372036854775808', content)),
    Case("nested span", "chrome", "caffe", _text('"pid": 1', f'"x": {_nested(20_000)}, "pid": 1', 5)),
    Case("nested profile of MXNet", "mxnet", "mxnet", _text('"pid": 0', f'"x": {_nested(20_000)}, "pid": 0', 5)),
    Case("operand types that are no UTF-8", "kineto", "gpu", lambda content: content.replace(b'"Input type":["float"', b'"Input type":["fl\xf4at"', 1)),
    # SQLite
    Case("zeros in a page, nsys", "nsys", "gpu-small-pages", lambda content: content[:2049] + bytes(205) + content[2254:], damage=True),
    Case("8 bytes of a page, nsys", "nsys", "cpu", _bytes(0.35, 8, b"\xff"), damage=True),
    Case("8 bytes of a page, nvprof", "nvprof", "gpu", _bytes(0.4, 8, b"\xff"), damage=True),
    Case("cut database", "nsys", "gpu", _cut(0.6), damage=True),
    Case("column named rowid", "nsys", "gpu", _sql(f"ALTER TABLE {KERNELS} ADD COLUMN rowid BLOB DEFAULT X'00'")),
    Case("rowid all equal", "nsys", "gpu", _sql(f"ALTER TABLE {KERNELS} ADD COLUMN rowid INTEGER DEFAULT 5")),
    Case("generated column", "nsys", "gpu", _sql("ALTER TABLE StringIds ADD COLUMN x INTEGER AS (1)")),
    Case("generated column that fails", "nsys", "gpu", _sql("ALTER TABLE StringIds ADD COLUMN x INTEGER AS (abs(-9223372036854775808))")),
    Case("rowids far apart", "nsys", "gpu", _sql(f"UPDATE {KERNELS} SET rowid = rowid * 300000000000000000 - 9000000000000000000")),
    Case("schema that is no UTF-8", "nsys", "gpu", _sql("UPDATE sqlite_master SET sql = CAST(replace(sql, 'TEXT', X'ff') AS TEXT) WHERE name = 'StringIds'")),
    Case("table name that is no UTF-8", "nvprof", "gpu", _sql("UPDATE sqlite_master SET name = CAST(X'ff41' AS TEXT) WHERE name = 'CUPTI_ACTIVITY_KIND_MARKER'")),
    Case("text that is no UTF-8", "nsys", "gpu", _sql("UPDATE StringIds SET value = CAST(X'ff80' AS TEXT)")),
    Case("times of int64's bounds", "nsys", "gpu", _sql(f"UPDATE {KERNELS} SET start = -9223372036854775808, end = 9223372036854775807 WHERE rowid < 4"), commands=True),
    Case("view without an end", "nsys", "gpu", _sql("DROP TABLE PROFILER_OVERHEAD", "CREATE VIEW PROFILER_OVERHEAD AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS \"end\", 0 AS globalTid, 0 AS nameId FROM n")),
    # Parquet, Arrow and bundles
    Case("table that is a folder", "nsys-tables", "parquet", lambda _: None, file="PROFILER_OVERHEAD.parquet"),
    Case("noise in a Parquet page", "nsys-tables", "parquet", _bytes(0.1, 8, b"\xa5"), file="CUPTI_ACTIVITY_KIND_MEMSET.parquet", damage=True),
    Case("two Arrow columns of one name", "nsys-tables", "arrow", lambda content: content.replace(b"correlationId", b"contextId\0\0\0\0"), file="CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.arrow"),
    Case("rows that are null in a bundle", "bundle", "gpu", with_cells("name_id", None), file="activities.parquet"),
    Case("nested manifest of a bundle", "bundle", "gpu", lambda content: b'{"x": ' + _nested(20_000).encode() + b", " + content[1:], file="manifest.json"),
    Case("text of a manifest that is not UTF-8", "bundle", "gpu", lambda content: content.replace(b'"kineto"', b'"\xe6ineto"'), file="manifest.json"),
    Case("noise in a bundle", "bundle", "gpu", _bytes(0.2, 64, b"\xa5"), file="calls.parquet", damage=True),
    Case("rows beyond a table in a bundle", "bundle", "gpu", with_cells("name_id", 4_000_000_000), file="activities.parquet"),
    # Nsight Compute
    Case("ncu cut in a row", "ncu", "raw-alone", _cut(0.56), damage=True),
    Case("ncu cut in a row, as counters", "ncu", "details", _cut(0.56), file="step.csv", damage=True),
    Case("zeros in ncu's table", "ncu", "raw-alone", _bytes(0.5, 300, b"\0"), damage=True),
    Case("blocks of ncu's table exchanged", "ncu", "details", lambda content: content[:2703] + content[9343:9348] + content[2708:9343] + content[2703:2708] + content[9348:], file="step.csv", damage=True),
    # XPlane
    Case("event of fixed 32 bits", "xplane", "program", _fields("event", _raw(b"\x25", 4))),
    Case("event with a long tag", "xplane", "gpu", _fields("event", _raw(b"\xa2\x00\x03\x08\x01\x00", 0))),
    Case("text of a stat that is a number", "xplane", "gpu", _as_numbers),
    Case("stat whose id swallows the tag of its value", "xplane", "gpu", lambda content: content.replace(b"\x08\x02\x18\r", b"\x08\x82\x18\r", 1), damage=True),
    Case("event of a million fields", "xplane", "gpu", _with_event(b"\x38\x01" * 1_000_000)),
    Case("event of a million stats", "xplane", "gpu", _with_event(b"\x22\x00" * 1_000_000)),
    Case("line whose name is longer than the line", "xplane", "gpu", lambda content: content.replace(b"\x12\x09tf_launch", b"\x12\x89tf_launch"), damage=True),
    Case("names left out", "xplane", "jax", _without_names),
    # Options and runs
    Case("nested rules", "rules", "rules.toml", lambda content: content + b"x = " + _nested(100_000).encode() + b"\n", file="rules.toml"),
    Case("nested pairs", "pairs", "pairs.toml", lambda content: content + b"x = " + _nested(100_000).encode() + b"\n", file="pairs.toml"),
    Case("nested manifest", "model", "model.layers.json", _text('"network": ', f'"x": {_nested(100_000)}, "network": '), file="model.layers.json"),
    Case("nested run", "run", "run", _text('"version": ', f'"x": {_nested(100_000)}, "version": '), file="traceana-run.json"),
)  # fmt: skip


def given(campaign: Campaign, case: Case) -> Input:
    """Return the input of ``case``."""
    (seed,) = [one for one in campaign.seeds if (one.format, one.name) == (case.format, case.seed)]
    file = case.file or next(iter(seed.damaged or seed.files))
    changed = case.change(seed.files[file])
    if changed == seed.files[file]:
        raise ValueError(f"{case.name}: the file is not changed")
    return Input(seed, {**seed.files, file: changed}, file, case.name, damage=case.damage)


def run(campaign: Campaign, names: Collection[str] = (), commands_too: bool = True) -> None:
    """Print the outcome of every case, or of those named, a line of JSON each."""
    for commands in (False, True) if commands_too else (False,):
        inputs: dict[str, list[tuple[int, Input]]] = {}
        for number, case in enumerate(CASES):
            if case.commands is commands and (not names or case.name in names):
                inputs.setdefault(case.format, []).append((number, given(campaign, case)))
        for done in campaign.each(inputs, analyze=int(commands)):
            name = CASES[done.number].name
            print(json.dumps({"name": name, **done.outcome.as_dict()}), flush=True)


if __name__ == "__main__":
    run(Campaign(0), sys.argv[1:])
