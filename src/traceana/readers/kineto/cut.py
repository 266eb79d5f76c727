"""Cuts a Kineto file: its events of some steps, as they stand in it, as a Kineto file again.

The key ``traceana`` of the cut has what is not in its events: the steps, their selection, and what
was measured of the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import polars as pl

from traceana.errors import UsageError
from traceana.files import UNDECODABLE
from traceana.readers.chrome.event_decoder import Counted, EventDecoder, to_nanoseconds
from traceana.readers.chrome.stream import read_stream
from traceana.readers.integrity import LONGEST_TRACE_NS
from traceana.readers.kineto.properties import CUT, OPTIONS, VERSIONS
from traceana.readers.source import ByteSource
from traceana.trace import Cut
from traceana.trace.schema import TABLES

if TYPE_CHECKING:
    from traceana.trace import Trace

_STEP: Final = ("number", "start", "duration", "process", "source")
_OF_RUN: Final = (
    *("unprofiled_step_ns", "ready_share", "spread_of_blocks", "gpu_clock_mhz"),
    *("steps_run_ahead", "host_factors"),
)
"""Fields of the meta that are not in the events."""


_Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Duration = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_TRACE_NS)]
_Time = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_TRACE_NS)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class OwnKey(msgspec.Struct, kw_only=True):
    """The key of a cut: ``steps`` with the columns :data:`_STEP`, their times on the file's clock,
    and fields of the meta."""

    cut: Cut
    steps: list[tuple[_Number, _Number, _Duration, _Number | None, str | None]]
    unprofiled_step_ns: _Time | None = None
    ready_share: _Share = 0.0
    spread_of_blocks: _Share | None = None
    gpu_clock_mhz: _Number | None = None
    steps_run_ahead: bool = False
    host_factors: tuple[tuple[_Number | None, _Number | None, _Share], ...] = ()

    def meta(self) -> dict[str, Any]:
        """Return the fields of the meta."""
        return {name: getattr(self, name) for name in ("cut", *_OF_RUN)}

    def table(self) -> pl.DataFrame:
        """Return the steps, with times on the file's clock."""
        types = {name: TABLES["steps"][name] for name in _STEP}
        return pl.DataFrame(self.steps, schema=types, orient="row")


def own_key(keys: dict[str, Any]) -> OwnKey:
    """Return what a cut has in its keys.

    Raises ``msgspec.ValidationError`` where traceana did not write it.
    """
    return msgspec.convert(keys[CUT], OwnKey)


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")


class _Texts(Counted):
    """Events as they stand in the file."""

    texts: list[msgspec.Raw] = msgspec.field(default_factory=list)


def cut_text(
    cut: Trace, extent: tuple[int, int] | None, text: Callable[[str], str] | None = None
) -> Iterator[bytes]:
    """Yield the text of a file with the events of ``cut``, a cut of a Kineto file.

    They are those of ``extent``, begin and end in ns of the trace, and those without a time; None:
    all. ``text`` replaces each text that the program or the machine gave.
    Raises :class:`~traceana.errors.UsageError` where the file is not the one that was read.
    """
    meta = cut.meta
    source = ByteSource(Path(meta.source))
    if meta.clock_start_ns is None or meta.cut is None or meta.bytes_total != source.bytes_total:
        raise UsageError(f"{meta.source} is not the file that was read: open it again")
    steps = cut.tables.steps.select(*_STEP).with_columns(pl.col("start") + meta.clock_start_ns)
    own = OwnKey(
        cut=meta.cut, steps=steps.rows(), **{name: getattr(meta, name) for name in _OF_RUN}
    )
    within = partial(_within, extent, meta.clock_start_ns)
    written: Callable[[msgspec.Raw], bytes] = bytes
    if text is not None:
        written = partial(_with_texts, text)
    events: list[bytes] = []
    document = read_stream(
        source,
        EventDecoder(msgspec.Raw, within),
        lambda kept: events.extend(map(written, kept.texts)),
    )
    keys = {
        name: msgspec.Raw(msgspec.json.encode(value))
        for name, value in {**document.keys, CUT: own}.items()
    }
    if text is not None:
        keys = _public(keys, text)
    yield msgspec.json.encode(keys).removesuffix(b"}") + b',"traceEvents":[\n'
    yield b",\n".join(events)
    yield b"\n]}\n"


def _within(extent: tuple[int, int] | None, origin: int, events: list[msgspec.Raw]) -> _Texts:
    """Return the events of the ``extent``, which is from ``origin`` on the file's clock."""
    if extent is None:
        return _Texts(texts=events)
    begin, end = (time + origin for time in extent)
    decoder = msgspec.json.Decoder(_Times)
    times = []
    for event in events:
        try:
            times.append(decoder.decode(event))
        except msgspec.ValidationError:
            times.append(_Times())
    start = to_nanoseconds([time.ts for time in times])
    duration = to_nanoseconds([time.dur for time in times]).fill_null(0)
    kept = (start <= end) & (start + duration >= begin)
    return _Texts(texts=[events[row] for row in kept.fill_null(value=True).arg_true()])


_OF_DRIVER: Final = frozenset(
    ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync", "ac2g")
)
"""Categories of events whose names the program does not give."""


def _with_texts(text: Callable[[str], str], event: msgspec.Raw) -> bytes:
    """Return an event with its texts replaced; numbers stay as they are written.

    What is no event becomes an empty one.
    """
    try:
        fields = msgspec.json.decode(event, type=dict[str, msgspec.Raw])
        category = msgspec.json.decode(fields.get("cat", b'""'), type=str)
    except UNDECODABLE:
        return b"{}"
    kept = ["ph", "cat"]
    if category.lower() in _OF_DRIVER:
        kept += ["name"]
    return msgspec.json.encode(
        {name: raw if name in kept else _replaced(text, raw) for name, raw in fields.items()}
    )


def _public(keys: dict[str, msgspec.Raw], text: Callable[[str], str]) -> dict[str, msgspec.Raw]:
    """Return the keys that describe neither the program nor the machine but its devices."""
    kept = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", *OPTIONS, *VERSIONS)
    return {name: keys[name] for name in kept if name in keys} | {
        name: _replaced(text, keys[name]) for name in ("distributedInfo", CUT) if name in keys
    }


def _replaced(text: Callable[[str], str], raw: msgspec.Raw) -> msgspec.Raw:
    """Return JSON with its texts and the names of its fields replaced."""
    if b'"' not in bytes(raw):
        return raw
    kind = bytes(raw).lstrip()[:1]
    if kind == b"{":
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        made: Any = {text(name): _replaced(text, value) for name, value in fields.items()}
    elif kind == b"[":
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
        made = [_replaced(text, value) for value in items]
    else:
        made = text(msgspec.json.decode(raw, type=str))
    return msgspec.Raw(msgspec.json.encode(made))
