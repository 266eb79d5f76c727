"""``python -m tests.fuzz.scanner``: the compiled scanner beside the decoders in Python.

The scanner is compiled with sanitizers of memory and of undefined behaviour. Blocks of JSON events
with one to four changes are scanned; what it accepts is decoded in Python, and the columns and
counts must be equal; what it refuses, the decoder in Python reads in any case. Runs of XPlane's
events with changes (``messages.py``) are decoded by it and in Python, and must be equal.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tests.fuzz.messages import ChangedRuns
from tests.fuzz.messages import compared as compared_messages
from tools.build_scanner import SANITIZED, build, compiler

MODULE: Final = "traceana.readers.compiled._scanner"
TOGETHER: Final = 200
"""Accepted blocks that are compared as one: making and comparing tables takes most of the time."""
ALONE: Final = 50
"""One of so many accepted blocks is also compared by itself."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|\s+|.', re.DOTALL)
_HOSTILE: Final = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\x00", b"\xff", b"\xc3"),
    *(b"null", b"true", b"false", b"NaN", b"N/A", b"-", b"-0", b"0", b"00", b"1.", b"1e5", b"{}"),
    *(b"7", b"-7", b"7.0", b"1.5", b"0.0005", b"1.00150", b"0.12345678901234567890", b"[]", b"[1]"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"1" * 30),
    *(b"18446744073709551615", b"18446744073709551616", b"9223372036854775.807", b"1e400"),
    *(b'""', b'"7"', b'"stream 7"', b'"-7"', b'"0x1f"', b'"' + b"9" * 19 + b'"', b'"a\\n\\u00e9"'),
    *(b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\u0000"', b'"\\q"'),
    *(b'"\xe2\x82\xac"', b'"\xed\xa0\x80"', b'"\xf0\x9f\x98\x80"'),
    *(b'"X"', b'"i"', b'"s"', b'"f"', b'"M"', b'"kernel"', b'"Kernel"', b'"cpu_op"', b'"ac2g"'),
    *(b'"user_annotation"', b'"[memory]"', b'"gloo:broadcast"', b'"nccl:all_reduce"', b'"Half"'),
    *(b"[1, 2, 3]", b"[1, null]", b"[[1], []]", b'{"a": [1]}', b"[" * 64 + b"]" * 64),
)  # fmt: skip
_LETTERS: Final = (
    *(b"a", b"7", b"-", b" ", b"0x", b"\\n", b"\\\\", b'\\"', b"\\/"),
    *(b"\\u0041", b"\\u00e9", b"\\u20ac", b"long enough"),
    *(b"\\ud83d", b"\\ude00", b"\\ud83d\\ude00", b"\\u", b"\\x", b"\x7f", b"\x1f", b"\xc3\xa9"),
    *(b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xf5\x80\x80\x80", b"\x80", b"\xe2\x82"),
)  # fmt: skip


@dataclass
class Tally:
    """What the scanner made of the blocks."""

    blocks: int = 0
    accepted: int = 0
    events: int = 0


class Blocks:
    """Blocks of changed events, by a number alone."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"scanner:{seed}")
        self._events: list[list[bytes]] = [_TOKEN.findall(event) for event in _events()]
        keys = {one for event in self._events for one in event if one[:1] == b'"'}
        self._words = [*_HOSTILE, *sorted(keys)]

    def __iter__(self) -> Iterator[bytes]:
        while True:
            tokens = self._block()
            for _ in range(self._rng.choice((0, 1, 1, 1, 2, 4))):
                self._change(tokens)
            text = b"".join(tokens)
            if self._rng.random() < 0.05 and text:
                at = self._rng.randrange(len(text))
                text = text[:at] + bytes([self._rng.randrange(256)]) + text[at + 1 :]
            yield text

    def _block(self) -> list[bytes]:
        tokens: list[bytes] = []
        for event in self._rng.choices(self._events, k=self._rng.choice((1, 1, 2, 5))):
            tokens += [b",", b"\n"] * bool(tokens) + event
        return tokens

    def _change(self, tokens: list[bytes]) -> None:
        at, other = self._rng.randrange(len(tokens)), self._rng.randrange(len(tokens))
        # Most changes are of one value or key for another: others seldom leave valid JSON.
        match self._rng.randrange(12):
            case 0:
                del tokens[at : at + self._rng.choice((1, 1, 4))]
                tokens.append(b" ")
            case 1:
                tokens.insert(at, self._rng.choice(self._words))
            case 2:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens[at:at] = tokens[other : other + self._rng.randrange(20)]
            case 4:
                tokens.insert(at, self._rng.choice((b" ", b"\t\r\n", b"\n    ")))
            case _:
                values = [i for i, token in enumerate(tokens) if token[:1] in b'"-0123456789tfn']
                if values:
                    tokens[self._rng.choice(values)] = self._value()

    def _value(self) -> bytes:
        match self._rng.randrange(6):
            case 0:
                return self._rng.choice(self._words)
            case 1 | 2:
                return self._rng.choice(_HOSTILE)
            case 3:
                return b'"' + b"".join(self._rng.choices(_LETTERS, k=self._rng.randrange(8))) + b'"'
            case _:
                return self._number()

    def _number(self) -> bytes:
        def digits(most: int) -> str:
            return "".join(self._rng.choices("0001234555556789", k=self._rng.randrange(most)))

        whole = self._rng.choice(("0", "", str(self._rng.randrange(1, 10)) + digits(22)))
        fraction = "." + digits(7) + self._rng.choice(("", "5", "50", "500000001"))
        sign, exponent = self._rng.choice(("", "", "", "-")), self._rng.choice(("e3", "E-2"))
        text = sign + whole + (fraction if self._rng.random() < 0.6 else "")
        return (text + (exponent if self._rng.random() < 0.05 else "")).encode()


def _events() -> list[bytes]:
    from tests.fuzz import seeds
    from traceana.readers.chrome.document import read_head, scan

    found: dict[bytes, None] = {}
    for seed in seeds.of("kineto"):
        for name, content in seed.files.items():
            if name.endswith(".json"):
                text = read_head(iter([content])).rest
                events = scan(text)
                places = zip(events.starts, events.ends, strict=True)
                found |= dict.fromkeys(text[start:end] for start, end in places)
    return [*found]


def compared(blocks: Iterator[bytes], seconds: float | None = None) -> Tally:
    """Scan and compare ``blocks``; raises ``AssertionError`` where a decoder differs."""
    from traceana.readers.kineto import scan

    assert isinstance(scan.DECODER, scan.ScanningDecoder)
    tally = Tally()
    held: list[bytes] = []
    end = None if seconds is None else time.monotonic() + seconds
    for block in blocks:
        tally.blocks += 1
        if scan.DECODER.accepts(block):
            held.append(block)
            if len(held) % ALONE == 0:
                tally.events += same([block])
        if len(held) == TOGETHER:
            tally.accepted += len(held)
            tally.events += same(held)
            held = []
            if end is not None and time.monotonic() > end:
                break
    tally.accepted += len(held)
    tally.events += same(held)
    return tally


def same(blocks: Sequence[bytes]) -> int:
    """Compare what the decoders make of accepted ``blocks``; return the number of events."""
    from tests.readers.kineto.equal import assert_equal
    from traceana.readers.chrome.event_decoder import UndecodableError
    from traceana.readers.kineto import decode, scan

    assert isinstance(scan.DECODER, scan.ScanningDecoder)
    text = b",".join(block for block in blocks if block.strip())
    found, half = scan.DECODER.scanned(text, len(text)), len(blocks) // 2
    if found is None:  # some block needs the decoder in Python: the others are compared
        return same(blocks[:half]) + same(blocks[half:]) if half else 0
    try:
        want = decode.DECODER.decode(text)
        assert_equal(found, want)
    except (AssertionError, UndecodableError) as error:
        if len(blocks) == 1:
            raise AssertionError(f"the decoders differ: {blocks[0]!r}") from error
        same(blocks[:half])
        same(blocks[half:])
        raise AssertionError(f"the decoders differ on blocks together: {text!r}") from error
    return want.events


def main() -> int:
    """Compile with sanitizers, then compare; 1 where the decoders differ or a sanitizer reports."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.scanner", description=__doc__)
    today = int(time.strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, help="default: the day")
    parser.add_argument("--count", type=int, default=20_000, help="blocks")
    parser.add_argument("--library", type=Path, default=None, help="do not compile, load this")
    given = parser.parse_args()
    if given.library is not None:
        return _compare(given.library, given.seed, given.count)
    with tempfile.TemporaryDirectory(prefix="traceana-scanner-") as folder:
        library = build(Path(folder), SANITIZED)
        environment = None if library is None else sanitized_environment()
        if environment is None:
            print("skipped: the scanner cannot be compiled with sanitizers here")
            return 0
        words = ["--library", str(library), "--seed", str(given.seed), "--count", str(given.count)]
        command = [sys.executable, "-m", "tests.fuzz.scanner", *words]
        return subprocess.run(command, env=environment, check=False).returncode


def sanitized_environment() -> dict[str, str] | None:
    """Return the environment in which a process can load the library with sanitizers.

    None where the compiler has no runtime of GCC's sanitizers.
    """
    asked = [*(compiler() or ()), "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(runtime).is_absolute():
        return None
    return {
        **os.environ,
        "LD_PRELOAD": runtime,
        # Python frees its own memory by pools, whose bounds no sanitizer can check.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0,allocator_may_return_null=1",
        "POLARS_MAX_THREADS": "1",
    }


def _compare(library: Path, seed: int, count: int) -> int:
    spec = importlib.util.spec_from_file_location(MODULE, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE] = module
    import traceana.readers.compiled as package

    package._scanner = module
    begin = time.process_time()
    messages = compared_messages(islice(iter(ChangedRuns(seed)), count))
    print(
        f"seed {seed}: {messages.runs:,} runs of XPlane, {messages.stopped:,} cut, "
        f"{messages.events:,} events compared, {messages.damaged:,} damaged, equal; "
        f"{time.process_time() - begin:,.0f} s of CPU"
    )
    begin = time.process_time()
    tally = compared(block for block, _ in zip(Blocks(seed), range(count), strict=False))
    print(
        f"seed {seed}: {tally.blocks:,} blocks, {tally.accepted:,} accepted by the scanner, "
        f"{tally.events:,} events compared, equal; {time.process_time() - begin:,.0f} s of CPU"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
