"""Reads folders and lists of files: the ranks of one distributed run, as one Trace.

The sums of one file fit int64 (:mod:`traceana.readers.integrity`); a rank whose times or bytes
would make the sum over all ranks exceed it is left out. Rows of an attributed trace refer to each
other by number, so a rank is left out whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.errors import (
    NotATraceError,
    TraceanaError,
    UsageError,
)
from traceana.plain_text import as_unicode
from traceana.readers.folder_traces import numberless
from traceana.readers.inputs import Input
from traceana.readers.integrity import FARTHEST_NS, LARGEST_SUM, LONGEST_TRACE_NS
from traceana.readers.source import Progress
from traceana.readers.windows import join_windows, processes_of, with_windows_united, worker_of
from traceana.trace import Cut, Ledger, Trace, TraceMeta
from traceana.trace.merge import merge
from traceana.trace.schema import TABLES, TIME_COLUMNS
from traceana.vocabulary.number_lists import MOST_SPANS, number_spans

_IN_NAME: Final = re.compile(r"(?i)(?:rank|worker|gpu|proc|process|node)[-_.]?(\d{1,6})(?!\d)")
_MOST_RANKS: Final = 1 << 20
"""Larger worlds are damaged numbers."""
_IN_ORDER: Final = "order of the file names"
_RECORDED: Final = "recorded in the files"
_COLLECTIVE: Final = r"(?i)[nr]ccl|all_?(?:reduce|gather|to_?all)|reduce_?scatter|\bmpi_"
"""In names of kernels, operators and ranges of a rank that communicates; they have no class yet."""
_MOST_APART_NS: Final = 600_000_000_000
"""From the end of a recording to the begin of the next one of a run, without ranks recorded."""
_TOO_LARGE: Final = "times or bytes whose sum with those of the other ranks exceeds 64 bits"
_NO_DEVICE: Final = "no device work, which other ranks have"
Open = Callable[[Path, Progress], Trace]
"""Function that reads and attributes one file."""


def read_folder(folder: Input, open_one: Open, progress: Progress) -> Trace:
    """Return one Trace of the files of ``folder``.

    Raises the errors of :func:`read_ranks`. A second recording of the same name and format is
    counted in the ledger as ``other_recording``.
    """
    trace = read_ranks(str(folder.path), folder.files, open_one, progress, found_in_folder=True)
    notes = Ledger()
    for not_read, read in folder.beside:
        detail = f"{not_read.name} beside {read.name}"
        notes.add("other_recording", 1, table="-", kept=True, detail=detail)
    return (
        trace.with_tables(ledger=pl.concat([trace.tables.ledger, notes.frame()]))
        if notes
        else trace
    )


def read_ranks(
    source: str,
    files: Sequence[Path],
    open_one: Open,
    progress: Progress,
    *,
    found_in_folder: bool = False,
) -> Trace:
    """Return one Trace of ``files``; ``source`` is the path that the user gave.

    ``found_in_folder``: the files were found in a folder, not given one by one. A file that cannot
    be read is counted in the ledger as ``skipped_file``; where none can be read, the first error is
    raised. Times are aligned by each file's epoch.
    """
    sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
    traces: list[Trace] = []
    read: list[Path] = []
    ledger = Ledger()
    not_traces: list[tuple[Path, NotATraceError]] = []
    first_error: TraceanaError | None = None
    total_size, before = sum(sizes), 0
    for i, file in enumerate(files):

        def report(done: int, total: int, before: int = before, size: int = sizes[i]) -> None:
            progress(before + (size * done // total if total else size), total_size)

        before += sizes[i]

        try:
            traces.append(open_one(file, report))
            read.append(file)
        except NotATraceError as error:
            not_traces.append((file, error))
            first_error = first_error or error
        except TraceanaError as error:
            first_error = first_error or error
            ledger.add("skipped_file", 1, table="-", kept=True, detail=str(error))
    if first_error is not None and not traces:
        raise first_error
    # A folder may hold other JSON files, but not beside a trace with the same name but for numbers;
    # every file of a list should be a trace.
    names_of_traces = {numberless(file) for file in read}
    for file, why in not_traces:
        if not found_in_folder or numberless(file) in names_of_traces:
            ledger.add("skipped_file", 1, table="-", kept=True, detail=str(why))
    if any(trace.tables.activities.height and not trace.on_cpu for trace in traces):
        # Operators of a CPU are not added to the work of GPUs.
        reasons = {True: f"{_NO_DEVICE} (truncated file)", False: _NO_DEVICE}
        why_not = [reasons[trace.meta.truncated] if trace.on_cpu else None for trace in traces]
        read, traces = _kept(read, traces, why_not, ledger)
    if len(traces) == 1 and not ledger:
        return traces[0]
    why_not = [None if fits else _TOO_LARGE for fits in summable(traces)]
    read, traces = _kept(read, traces, why_not, ledger)
    traces = with_near_epochs(traces)
    processes = processes_of(read)
    first = [processes.index(process) for process in sorted({*processes})]
    first_files, first_traces = [read[i] for i in first], [traces[i] for i in first]
    of_processes, how = ranks(first_files, [trace.meta.rank for trace in first_traces])
    numbers = [of_processes[process] for process in processes]
    if how == _IN_ORDER:
        _check_one_model(read, traces)
    captures = [(trace.meta.epoch_ns, _extent(trace)) for trace in first_traces]
    names = (
        column
        for tables in (trace.tables for trace in traces)
        for column in (tables.names["name"], tables.ops["name"], tables.ranges["text"])
    )
    communicating = how != _RECORDED and any(
        column.unique().cast(pl.String).str.contains(_COLLECTIVE).any() for column in names
    )
    if apart := check_one_run(first_files, captures, how, communicating=communicating):
        ledger.add("apart", 1, table="-", kept=True, detail=apart)
    unaligned = sum(trace.meta.epoch_ns is None for trace in traces)
    if len(traces) > 1:
        ledger.add(
            "no_epoch", unaligned, table="-", kept=True, detail="aligned to the earliest file"
        )
    windows: dict[str, int] = {}
    if len(first) < len(read):
        traces, windows = join_windows(read, traces, processes, ledger)
    meta = _meta(source, read, traces, numbers, how)
    if windows and len(first) == 1:
        # One process has no rank but the recorded one.
        meta = msgspec.structs.replace(
            meta, rank=traces[0].meta.rank, properties={**traces[0].meta.properties}
        )
        merged = merge(traces, None, meta)
    else:
        missing = set(range(min(meta.world_size or 0, _MOST_RANKS))) - set(numbers)
        detail = spans(sorted(missing))
        ledger.add("missing_rank", len(missing), table="-", kept=True, detail=detail)
        merged = merge(traces, numbers, meta)
    if windows:
        properties = {**merged.meta.properties, "windows": windows}
        merged = with_windows_united(merged).with_meta(properties=properties)
    return merged.with_tables(ledger=pl.concat([merged.tables.ledger, ledger.frame()]))


def _kept(
    files: Sequence[Path], traces: Sequence[Trace], why_not: Sequence[str | None], ledger: Ledger
) -> tuple[list[Path], list[Trace]]:
    """Return the files and traces without a reason against them; ``ledger`` counts the others."""
    kept_files: list[Path] = []
    kept_traces: list[Trace] = []
    for file, trace, why in zip(files, traces, why_not, strict=True):
        if why is None:
            kept_files.append(file)
            kept_traces.append(trace)
        else:
            ledger.add("skipped_file", 1, table="-", kept=True, detail=f"{file}: {why}")
    return kept_files, kept_traces


def spans(numbers: Sequence[int]) -> str | None:
    """Return e.g. ``1, 4-7``, None without numbers."""
    texts = number_spans(numbers)
    more = [f"and {len(texts) - MOST_SPANS} more"] if len(texts) > MOST_SPANS else []
    return ", ".join([*texts[:MOST_SPANS], *more]) or None


def ranks(files: Sequence[Path], recorded: Sequence[int | None]) -> tuple[list[int], str]:
    """Return the rank of every file, and the source of the ranks.

    ``recorded`` are the ranks in the files (``distributedInfo``). Where some are missing, negative
    or beyond 31 bits, the file names decide (``rank3``, ``worker0``), else the order of the files.
    Raises ``UsageError`` where two files have one rank, or are of one process: they are
    from two runs.
    """
    valid = [
        (file, rank)
        for file, rank in zip(files, recorded, strict=True)
        if rank is not None and 0 <= rank < 1 << 31
    ]
    _check_distinct(valid)
    if len(valid) == len(files):
        return [rank for _, rank in valid], _RECORDED
    named = [(file, rank) for file in files if (rank := rank_in(file)) is not None]
    if len(named) == len(files):
        _check_distinct(named)
        return [rank for _, rank in named], "file names"
    _check_workers(files)
    return list(range(len(files))), _IN_ORDER


def _check_one_model(files: Sequence[Path], traces: Sequence[Trace]) -> None:
    """Raise ``UsageError`` where a recording is of another GPU model."""
    models = {
        name: file
        for file, trace in zip(files, traces, strict=True)
        for name in trace.tables.devices["name"].drop_nulls()
    }
    if len(models) > 1:
        (model, file), (other_model, other_file) = list(models.items())[:2]
        raise UsageError(
            f"{file.name} ({model}) and {other_file.name} ({other_model}) are not ranks of one "
            "run: give one of them, or compare them with traceana diff"
        )


def check_one_run(
    files: Sequence[Path],
    captures: Sequence[tuple[int | None, int]],
    how: str,
    *,
    communicating: bool,
) -> str | None:
    """Return what speaks against one run: a recording began long after all before it had ended.

    ``captures`` are the epoch and the extent of each file, ``how`` is the source of the ranks:
    recorded ones are of one run. Clocks of ranks that communicate may differ by ten minutes; other
    recordings are of one run if less than the longest capture lies between them. Raises
    ``UsageError`` where the files do not name the ranks.
    """
    if how == _RECORDED:
        return None
    recorded = sorted(
        (epoch, epoch + extent, file)
        for file, (epoch, extent) in zip(files, captures, strict=True)
        if epoch is not None and 0 <= epoch < FARTHEST_NS
    )
    most = _MOST_APART_NS if communicating else max((extent for _, extent in captures), default=0)
    for (_, ended, before), (begun, _, after) in pairwise(recorded):
        if begun - ended > most:
            seconds = (begun - ended) / 1e9
            apart = f"{seconds / 3600:,.1f} hours" if seconds > 3600 else f"{seconds:,.1f} seconds"
            why = "" if communicating else " and have no collectives"
            text = (
                f"{before.name} and {after.name} were recorded {apart} apart{why}, not as ranks "
                "of one run: give one of them, or compare them with traceana diff"
            )
            if how == _IN_ORDER:
                raise UsageError(f"{text}; if they are, name them rank0, rank1 …")
            return text
    return None


def _check_workers(files: Sequence[Path]) -> None:
    """Raise ``UsageError`` where two of ``files`` are one file, or of one process."""
    first_files: dict[Path | str, Path] = {}
    for file in files:
        keys = {
            "the same file": file.resolve(),
            "recordings of one process": worker_of(file),
        }
        for relation, key in keys.items():
            if key is not None and (first := first_files.setdefault(key, file)) is not file:
                raise UsageError(f"{first} and {file} are {relation}: pass one of them")


def rank_in(file: Path) -> int | None:
    """Return the rank in the name of ``file``."""
    match = _IN_NAME.search(file.name)
    return int(match[1]) if match else None


def _check_distinct(ranks: Sequence[tuple[Path, int]]) -> None:
    """Raise ``UsageError`` where two files have one rank."""
    for repeated, count in Counter(rank for _, rank in ranks).most_common(1):
        if count > 1:
            files = [str(file) for file, rank in ranks if rank == repeated]
            raise UsageError(
                f"{' and '.join(files[:2])} are both rank {repeated}: pass the files of one run"
            )


def _meta(
    source: str, files: Sequence[Path], traces: Sequence[Trace], numbers: Sequence[int], how: str
) -> TraceMeta:
    metas = [trace.meta for trace in traces]
    epochs = [meta.epoch_ns for meta in metas if meta.epoch_ns is not None]

    hosts = {
        str(number): meta.host for number, meta in zip(numbers, metas, strict=True) if meta.host
    }

    def common(values: set[str | None]) -> str | None:
        return values.pop() if len(values) == 1 else None

    return TraceMeta(
        source=source,
        format=common({meta.format for meta in metas}) or "mixed",
        format_version=common({meta.format_version for meta in metas}),
        producer=common({meta.producer for meta in metas}),
        framework=common({meta.framework for meta in metas}),
        epoch_ns=min(epochs, default=None),
        world_size=max((meta.world_size for meta in metas if meta.world_size), default=None),
        truncated=any(meta.truncated for meta in metas),
        bytes_read=sum(meta.bytes_read or 0 for meta in metas),
        bytes_total=sum(meta.bytes_total or 0 for meta in metas),
        events=sum(meta.events or 0 for meta in metas),
        cut=_common_cut(source, files, metas),
        properties={
            "ranks": dict(
                zip((str(n) for n in numbers), (as_unicode(str(f)) for f in files), strict=True)
            ),
            "rank_source": how,
            **({"hosts": hosts} if hosts else {}),
        },
    )


def _common_cut(source: str, files: Sequence[Path], metas: Sequence[TraceMeta]) -> Cut | None:
    """Return the selection of the cuts among the files, which is then that of all ranks.

    Raises ``UsageError`` where their selections differ.
    """
    cuts = {
        msgspec.structs.replace(meta.cut, source=source, ranks=None): file
        for file, meta in zip(files, metas, strict=True)
        if meta.cut is not None
    }
    if len(cuts) > 1:
        (first, file), (second, other) = list(cuts.items())[:2]
        raise UsageError(
            f"{file} has {_selection(first)}, {other} {_selection(second)}: cut the ranks "
            "at the same steps and devices"
        )
    return next(iter(cuts), None)


def _selection(cut: Cut) -> str:
    steps = "all steps" if cut.steps is None else f"step {spans(cut.steps)}"
    return steps if cut.devices is None else f"{steps} of device {spans(cut.devices)}"


_SUMMED: Final = ("duration", "bytes")


def summable(traces: Sequence[Trace]) -> list[bool]:
    """Return which of ``traces`` can be merged, those with the smallest sums and extents first.

    Durations and bytes of a table are added up over all ranks, and so is the extent of the run
    over all devices.
    """
    sums = [
        [
            int(trace.tables[table][column].abs().sum() or 0)
            for table, columns in TABLES.items()
            for column in _SUMMED
            if column in columns
        ]
        for trace in traces
    ]
    extents = [_extent(trace) for trace in traces]
    devices = [_devices(trace) for trace in traces]
    kept = [True] * len(traces)
    for column_sums in zip(*sums, strict=True):
        total = 0
        for rank in sorted(range(len(traces)), key=column_sums.__getitem__):
            total += column_sums[rank] if kept[rank] else 0
            kept[rank] &= total <= LARGEST_SUM
    kept_devices = 0
    for rank in sorted(range(len(traces)), key=extents.__getitem__):
        kept_devices += devices[rank] if kept[rank] else 0
        # One rank is as it would be alone.
        is_first = kept_devices == devices[rank]
        kept[rank] &= extents[rank] * kept_devices <= LARGEST_SUM or is_first
    return kept


def with_near_epochs(traces: Sequence[Trace]) -> list[Trace]:
    """Return ``traces``, those with an epoch before 1970, or far from the median, without it."""
    epochs = sorted(
        epoch
        for trace in traces
        if (epoch := trace.meta.epoch_ns) is not None and 0 <= epoch < FARTHEST_NS
    )
    median = epochs[len(epochs) // 2] if epochs else 0
    # The extent of all ranks is added up over their devices.
    devices = sum(map(_devices, traces))
    farthest = min(LONGEST_TRACE_NS, LARGEST_SUM // (4 * devices))
    return [
        trace
        if (epoch := trace.meta.epoch_ns) is None
        or (0 <= epoch < FARTHEST_NS and abs(epoch - median) <= farthest)
        else trace.with_meta(epoch_ns=None)
        for trace in traces
    ]


def _extent(trace: Trace) -> int:
    ends = [
        end
        for name, columns in TIME_COLUMNS.items()
        for column in columns
        for end in (trace.tables[name][column].min(), trace.tables[name][column].max())
        if isinstance(end, int)
    ]
    return max(ends, default=0) - min(ends, default=0)


def _devices(trace: Trace) -> int:
    return max(1, trace.tables.activities["device"].n_unique())
