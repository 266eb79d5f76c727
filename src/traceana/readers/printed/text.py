"""Text as profilers printed it, without what a terminal, a log or a web page did to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Final

import msgspec

NCU_HEADER: Final = '"ID","[^\r\n]*"Kernel Name",'
"""The header of Nsight Compute's table."""
NVPROF_TITLES: Final = (
    r'(?:"?(?:Start"?(?:,"?Duration"?,| {2,}Duration {2,})|Name"?,"?Start Time\(ns\)"?,)'
    r"|Start \([num]?s\),Duration \([num]?s\),(?:CorrId,GrdX,|Name,Result,CorrID,))"
)
"""The beginning of a table: nvprof's in columns or CSV, the Visual Profiler's CSV, the CSV of
``cuda_gpu_trace`` and ``cuda_api_trace`` of Nsight Systems."""
NSYS_COLUMNS: Final = (
    r"Start \([num]?s\) {2,}Duration \([num]?s\) {2,}"
    r"(?:CorrId {2,}GrdX {2,}|Name {2,}Result {2,}CorrID {2,})"
)
"""The beginning of the same in columns."""
SUMMARY_TITLES: Final = "|".join(
    (
        # nvprof's, of both layouts, and those of Nsight Systems.
        r'(?:"?(?:Device|Type|Name)"?[",;| \t]+){0,2}"?Time ?\(%\).{1,30}\bTime\b.{1,30}'
        r"\b(?:Calls|Instances|Operations|Count)\b",
        r'"?Total(?: \(\w+\))?"?[ \t,|]+"?(?:Operations|Count)\b',
        # torch's key_averages(), rocprof's and rocpd's, MXNet's.
        r"Name[ \t|,]+(?:Overload Name[ \t|,]+)?(?:Self )?(?:CPU|CUDA|XPU|HPU|MTIA|PrivateUse1)\b",
        r'(?:ProcessID +Hostname +)?"?(?:Name|NAME)"?[ \t,|]+(?:"?DOMAIN"?[ \t,|]+)?"?'
        r'(?:Calls|CALLS)"?[ \t,|]+"?(?:TotalDuration|DURATION)',
        r"Name {2,}Total Count",
        # ROCm Compute Profiler's pmc_kernel_top.csv.
        r'"?Kernel_Name"?,"?Count"?,"?Sum\(\w+\)',
    )
)
"""The beginning of a table of a summary: names with calls and times."""
NVPROF_METRICS_TITLES: Final = (
    r'"?Device"?,"?Kernel"?,"?Invocations|Invocations {2,}(?:Metric|Event) Name'
)
"""The beginning of a table of ``nvprof --metrics`` or ``--events``: CSV, columns."""
ROCPROF_TITLES: Final = (
    # two titles of each table: kernels and counters, copies and calls, agents, samples
    ("Kernel_?Name", "Start_Timestamp|gpu[-_]id|Agent_Id"),
    ("Direction|Function|Operation", "Start_Timestamp"),
    ("Node_Id", "Agent_Type"),
    ("Sample_Timestamp", "Dispatch_Id"),
)
"""Titles by which the tables in rocprof's CSV are known, in either order."""


def rocprof_title(words: str) -> str:
    """Return the pattern of a title that is one of ``words``, in a header of CSV."""
    return rf'\b(?:{words})\b"?\s*(?:,|$)'


_NSYS_SUMMARY: Final = re.compile(
    r"(?:(.+)_)?(?:cuda_(?:gpu_(?:kern|mem_time|mem_size)|api)_sum|gpu(?:kern|memtime|memsize)sum"
    r"|cudaapisum)\.csv"
)
"""The names of the files of ``nsys stats --format csv --output NAME``, since 2022 and before."""
BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""
UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
"""The byte order marks of UTF-16."""
_ESCAPE: Final = re.compile(
    rb"\x1b(?:\[[\d;?]*[A-Za-z]|\([0AB]|\][^\x07\x1b\r\n]{0,999}(?:\x07|\x1b\\))"
)
"""A colour, a movement of the cursor, a character set, the title of a window."""
_RETURNS: Final = re.compile(rb"\r+\n?")
_SPACE: Final = re.compile(rb"(?<!\d)\xc2\xa0|\xc2\xa0(?!\d)")
"""A no-break space that does not separate groups of digits."""
_ENTITIES: Final = (
    *((b"&lt;", b"<"), (b"&gt;", b">"), (b"&quot;", b'"'), (b"&#39;", b"'"), (b"&amp;", b"&")),
)
_TITLES: Final = re.compile(
    "|".join(
        (
            *(NVPROF_TITLES, NSYS_COLUMNS, SUMMARY_TITLES, NVPROF_METRICS_TITLES),
            NCU_HEADER,
            r" {4}Section: \w",
        )
    ).encode()
)
"""A header, anywhere in a line: Nsight Compute's are its CSV's, and that of a section."""
_WORDS: Final = (
    *(b"(%)", b"Self ", b"CPU total", b"CPU time", b"Duration", b"Start Time", b"Invocations"),
    *(b"Total (", b"Total Count", b"DURATION", b"Kernel_Name", b'"ID"', b" Section: "),
)
"""What a header has one of: a search for these is faster."""
_JSON: Final = re.compile(rb"\s*(?:\[\s*)?\{")
_TABS: Final = re.compile(
    rb"^[ #>]*(?:Start\tDuration|Invocations\t(?:Metric|Event) Name|Name\tTotal Count)\t",
    re.MULTILINE,
)
"""Headers of padded columns that a spreadsheet separated by tabs."""
_BEGIN: Final = re.compile(rb"[ \t#>|`]*(?:\*\*)?[ \t]*")
"""What the readers leave out before a line."""
_BORDER: Final = "\u2502".encode()
_BOLD: Final = re.compile(
    rb"(^[ \t>|#]*|[ \t]{2}|\|[ \t]*)\*\*[ \t]*(\S.{0,2000}?)[ \t]*\*\*(?=[ \t]{2}|[ \t]*(?:\||$))",
    re.MULTILINE,
)
"""Bold lines and cells of Markdown; pointers to pointers do not stand alone in a cell."""
_DIGITS: Final = re.compile(rb"\d+")
_CLOCK: Final = re.compile(rb"\d{4}-\d\d-\d\d|\d+:\d\d:\d\d(?:[.,]\d+)?")
_LONGEST_PREFIX: Final = 120
_MOST_HEADERS: Final = 64
_FAR: Final = 1 << 20
_LONGEST_HEADER: Final = 1 << 12
_NEXT: Final = 5
"""Lines behind a header; at least two of them have its prefix."""


def plain_text(content: bytes) -> bytes:
    """Return ``content`` as UTF-8 and without what was printed around the profiler's text.

    That is a byte order mark, a terminal's escape sequences, HTML's entities and no-break spaces,
    Markdown's bold, and what a launcher, a logger or an editor put before each line:
    ``[1,0]<stdout>:``, a time, a comment mark. PowerShell redirects the output of programs as
    UTF-16.
    """
    if content.startswith(UTF_16):
        content = content.decode("utf-16", "replace").encode()
    content = content.removeprefix(BOM)
    if b"\x1b" in content:
        content = _ESCAPE.sub(b"", content)
    # All that most files have, without a search by pattern.
    content = content.replace(b"\r\n", b"\n")
    if b"\r" in content:
        content = _RETURNS.sub(b"\n", content)
    if b"\xc2\xa0" in content:
        content = _SPACE.sub(b" ", content)
    if b"&lt;" in content or b"&gt;" in content:
        for entity, character in _ENTITIES:
            content = content.replace(entity, character)
    if b"**" in content:
        content = _BOLD.sub(rb"\1\2", content)
    if b"\t" in content and _TABS.search(content):
        content = content.replace(b"\t", b"  ")
    return _without_prefixes(content)


class _Prefix(msgspec.Struct, frozen=True):
    """The prefix of a log's lines: ``parts`` between runs of digits, which differ by line."""

    parts: tuple[bytes, ...]
    spaces: bool
    """Whether spaces behind the parts belong to the prefix."""

    def end(self, line: bytes) -> int:
        """Return where the prefix of ``line`` ends, 0 without one."""
        at = len(line) - len(line.lstrip(b" \t"))
        for number, part in enumerate(self.parts):
            if number:
                digits = _DIGITS.match(line, at)
                if digits is None:
                    return 0
                at = digits.end()
            if not line.startswith(part, at):
                # The line may be empty but for the prefix, whose last space editors cut.
                if number != len(self.parts) - 1 or line[at:].strip() or part.strip():
                    return 0
                return len(line)
            at += len(part)
        while self.spaces and line[at : at + 1] in (b" ", b"\t"):
            at += 1
        return at


def _without_prefixes(content: bytes) -> bytes:
    """Return ``content`` without the prefixes of its headers before all lines that have them."""
    if _JSON.match(content):
        return content
    prefixes, is_plain = _prefixes(content[:_FAR])
    # A long table whose header has no prefix is not searched to its end.
    if not prefixes and not is_plain and len(content) > _FAR:
        prefixes, _ = _prefixes(content)
    if not prefixes:
        return content
    groups: dict[bytes, int] = {}
    groups_with_header: set[int] = set()
    lines: list[tuple[int, bytes]] = []
    group = 0
    for line in content.split(b"\n"):
        end = max(prefix.end(line) for prefix in prefixes)
        if end:
            group = groups.setdefault(_CLOCK.sub(b"", line[:end]).strip(), len(groups))
        rest = line[end:]
        if any(word in rest for word in _WORDS) and _TITLES.match(rest.lstrip(b" \t")):
            groups_with_header.add(group)
        lines.append((group, rest))
    # Ranks print at the same time: the rows of one are not between those of another.
    if len(groups_with_header) > 1:
        lines.sort(key=itemgetter(0))
    return b"\n".join(line for _, line in lines)


def _prefixes(content: bytes) -> tuple[list[_Prefix], bool]:
    """Return the different prefixes of the headers in ``content``, and whether one has none."""
    prefixes: dict[_Prefix, None] = {}
    is_plain = False
    for start, match in _headers(content):
        before = content[start : match.start()]
        is_section = match[0].startswith(b"    Section")
        is_csv = match[0].startswith(b'"ID"')
        if not (before if is_csv else _BEGIN.sub(b"", before, count=1)):
            is_plain = True
            continue
        # A border is of a table that other programs draw.
        if len(before) > _LONGEST_PREFIX or _BORDER in before:
            continue
        text = before.lstrip(b" \t") if is_section else before.strip(b" \t")
        prefix = _Prefix(tuple(_DIGITS.split(text)), spaces=not is_section)
        # Lines behind the header have the prefix of a log, too.
        header_end = content.find(b"\n", match.end())
        behind = b""
        if header_end >= 0:
            behind = content[header_end + 1 : header_end + _LONGEST_HEADER * _NEXT]
        lines = [line for line in behind.split(b"\n") if line.strip()][:_NEXT]
        if sum(prefix.end(line) > 0 for line in lines) >= min(2, max(len(lines), 1)):
            prefixes[prefix] = None
    return list(prefixes), is_plain


def _headers(content: bytes) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Yield the first headers in ``content``, each with the start of its line."""
    starts: set[int] = set()
    for word in _WORDS:
        at = content.find(word)
        for _ in range(_MOST_HEADERS):
            if at < 0:
                break
            starts.add(content.rfind(b"\n", 0, at) + 1)
            # The next one in another line.
            end = content.find(b"\n", at)
            at = content.find(word, end) if end >= 0 else -1
    for start in sorted(starts):
        end = content.find(b"\n", start, start + _LONGEST_HEADER)
        if match := _TITLES.search(content, start, end if end >= 0 else start + _LONGEST_HEADER):
            yield start, match


def nsys_summaries(folder: Path) -> list[Path]:
    """Return the CSV files of one run of ``nsys stats --output``, a file for each report.

    None where ``folder`` has the files of several runs.
    """
    try:
        named = [(file, _NSYS_SUMMARY.fullmatch(file.name)) for file in sorted(folder.iterdir())]
    except OSError:
        return []
    runs = {match[1] for _, match in named if match}
    return [file for file, match in named if match] if len(runs) == 1 else []
