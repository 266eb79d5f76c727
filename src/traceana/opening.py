"""Opens a path as a classified and attributed Trace."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from traceana.errors import InvalidInputError, NotFoundError, UsageError
from traceana.plain_text import as_unicode
from traceana.readers.source import Progress, enter, silent
from traceana.runs.run_files import INDUCTOR_FOLDER, LAYERS_FILE
from traceana.timeline.steps import select
from traceana.trace import RECORDED_WITH, Trace

if TYPE_CHECKING:
    from traceana.enrich import Reference
    from traceana.enrich.layers.generated_code import Code, Graph
    from traceana.readers.inputs import Input
    from traceana.runs.layer_manifest import Manifest
    from traceana.vocabulary.number_lists import Numbers


def open_trace(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    steps: Numbers | None = None,
    ranks: Numbers | None = None,
    devices: Numbers | None = None,
    model: Manifest | str | os.PathLike[str] | None = None,
    step_marker: str | None = None,
    rules: str | os.PathLike[str] | None = None,
    counters: str | os.PathLike[str] | None = None,
    device_model: str | None = None,
    capture: str | os.PathLike[str] | None = None,
    inductor_cache: str | os.PathLike[str] | None = None,
    as_recorded: bool = False,
    progress: Progress = silent,
) -> Trace:
    """Return the Trace of a file, a saved bundle, a recorded run, or the ranks of a distributed
    run.

    The files of the ranks, or their recorded runs, given as a list or a folder, become one Trace:
    every row has its rank, and times are aligned by the epoch of each file.

    ``steps``, ``ranks`` and ``devices`` select activities by number (:meth:`Trace.select`).
    ``model`` is a layer manifest or its file; the default is the manifest beside the trace.
    ``rules`` is a TOML file of extra classification rules, checked before those of the user's
    configuration directory and traceana's own. Without it, a bundle keeps its saved classes.
    ``device_model`` is the GPU model, or a part of its name, for a trace that does not record it;
    a recorded name takes precedence.
    ``counters`` is a table of counters of the same program: of Nsight Compute (``ncu --csv --page
    raw``), ``nvprof --metrics`` or rocprof. Its launches are joined to kernels (column ``activity``
    of ``trace.tables.counters``).
    ``capture`` is another recording of the same program, for a trace that replays CUDA graphs: of
    the capture, or of the network without graphs. The work of replays gets the operators, layers
    and directions found there (column ``layer_confidence``).
    ``inductor_cache`` is a folder with the code that Inductor generated for the program's graphs of
    ``torch.compile`` (``TORCHINDUCTOR_CACHE_DIR``); the default is that of the recorded run. It is
    parsed, never executed, and has what each generated kernel reads (``trace.tables.graph_calls``).
    ``step_marker`` is the name of the ranges that mark steps, or a regular expression that matches
    it: :func:`traceana.enrich.steps.marked_by`. A bundle keeps its layers and gets new steps.
    With ``as_recorded`` the results are of the times that the profiler recorded; the default is the
    program without the profiler's cost, where that is known
    (:func:`traceana.whatif.program.without_profiler`). ``tables`` are always as recorded.
    Every name has a class. Activities have their launching call, operator, range, layer, step and
    direction, and a class refined by that context. Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.readers.inputs import Kind, resolve

    manifest = None if model is None else _manifest_of(model)
    sources = _paths(path)
    source = sources[0]
    found = resolve(source) if len(sources) == 1 else None
    is_bundle = found is not None and found.kind is Kind.BUNDLE
    other = None if capture is None else _reference(Path(capture), progress)
    if is_bundle and inductor_cache is not None:
        raise UsageError(
            f"{source}: a saved bundle keeps its layers; give --inductor-cache with the trace"
        )
    code = _code_beside(source) if inductor_cache is None else _code_in(Path(inductor_cache))
    read = partial(_read, step_marker=step_marker, other=other, code=code)
    trace = _read_all(sources, found, read, progress)
    if inductor_cache is not None and trace.tables.graph_calls.is_empty():
        raise _code_without_calls(trace, source, inductor_cache)
    # A bundle has its classes.
    if rules is not None or not is_bundle:
        trace = _classified(trace, None if rules is None else Path(rules), progress)

    given = {
        "--model": model if isinstance(model, str | os.PathLike) else None,
        "--step-marker": step_marker,
        "--rules": rules,
        "--counters": counters,
        "--device-model": device_model,
        "--capture": capture,
        "--inductor-cache": inductor_cache,
    }
    words = ((name, as_unicode(str(value))) for name, value in given.items() if value is not None)
    trace = trace.with_meta(opened_with=tuple(chain.from_iterable(words)))
    if is_bundle or len(sources) > 1 or source.is_dir():
        trace = trace.with_meta(opened=tuple(as_unicode(str(source)) for source in sources))
    if not is_bundle:
        trace = _with_run_files(trace, source if source.is_dir() else source.parent)
    if device_model is not None:
        from traceana.flops.peaks import with_device_model

        trace = with_device_model(trace, device_model)
    if counters is not None:
        trace = _with_counters(trace, Path(counters), progress)
    kept_in_bundle = is_bundle and manifest is None and (source / LAYERS_FILE).is_file()
    manifest = manifest or _manifest_beside(source)
    if kept_in_bundle:
        # Its names and the recommendations are those that were saved.
        trace = replace(trace, manifest=manifest)
    elif manifest is not None:
        from traceana.analyze.manifest_layers import with_names_of

        # Here, so that all commands call a layer by one name.
        trace = with_names_of(trace, manifest)
        trace = trace.with_manifest(manifest)
    if as_recorded:
        trace = trace.with_meta(as_recorded=True)
    if (part := trace.meta.cut) is not None:
        trace = select(trace, steps=part.steps, devices=part.devices, ranks=part.ranks)
    return select(trace, steps=steps, devices=devices, ranks=ranks)


def _paths(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    if isinstance(path, str | os.PathLike):
        return [Path(path)]
    if not isinstance(path, Sequence):
        raise TypeError(f"open() takes the path of a trace, or a list of paths, not {path!r}")
    if not path:
        raise NotFoundError("no input: give a trace, or the files of one run's ranks")
    return [Path(file) for file in path]


def _read_all(
    sources: Sequence[Path], found: Input | None, read: Callable[..., Trace], progress: Progress
) -> Trace:
    """Return the Trace of one file, or of the ranks' files; ``found`` are the files of a source."""
    from traceana.readers.inputs import Kind, resolve

    if found is not None and found.kind is not Kind.FOLDER and len(found.files) == 1:
        return read(found.files[0], progress)
    from traceana.readers.ranks import read_folder, read_ranks

    source = sources[0]
    read_rank = partial(read, needs_timeline=True)
    if found is None:
        # A recorded run of a rank is its folder.
        files = [
            file for path in sources for file in (resolve(path).files if path.is_dir() else [path])
        ]
        return read_ranks(str(source.parent), files, read_rank, progress)
    if found.kind is Kind.FOLDER:
        return read_folder(found, read_rank, progress)
    return read_ranks(str(source), found.files, read_rank, progress)


def _read(
    source: Path,
    progress: Progress,
    *,
    step_marker: str | None,
    other: Reference | None,
    code: Code | None,
    needs_timeline: bool = False,
) -> Trace:
    """Return the attributed Trace of one file; a rank's file ``needs_timeline``."""
    from traceana.trace.bundle import is_bundle, load

    if is_bundle(source):
        if other is not None:
            raise UsageError(
                f"{source}: a saved bundle keeps its layers; give --capture with the trace"
            )
        trace = load(source)
        if step_marker is not None:
            from traceana.enrich.attribution import remarked

            trace = remarked(trace, step_marker)
    else:
        from traceana.enrich import attribute, replays_graphs
        from traceana.readers import read

        trace = read(source, progress)
        enter(progress, "attributing")
        if other is not None and not replays_graphs(trace):
            raise UsageError(f"{source}: no launch of a CUDA graph; --capture does not apply")
        trace = attribute(trace, step_marker, other, code)
    if needs_timeline and trace.tables.activities.is_empty() and trace.tables.counters.height:
        raise InvalidInputError(
            f"{source}: contains counters and no timeline; give it with --counters"
        )
    return trace


def _code_without_calls(
    trace: Trace, source: Path, inductor_cache: str | os.PathLike[str]
) -> UsageError:
    """Return the error for generated code that no recorded call belongs to."""
    from traceana.enrich import replays_graphs

    if replays_graphs(trace):
        return UsageError(
            f"{source}: its compiled code ran as CUDA graphs, without recorded calls; give "
            "a recording of the capture, or of a run without mode='reduce-overhead' (--capture)"
        )
    return UsageError(
        f"{source}: --inductor-cache {inductor_cache} lacks the code of all its graphs; give "
        "the TORCHINDUCTOR_CACHE_DIR of the recorded process"
    )


def _classified(trace: Trace, rules: Path | None, progress: Progress) -> Trace:
    from traceana.enrich import with_classes
    from traceana.enrich.classify import rules_in_use

    enter(progress, "classifying")
    rule_set = rules_in_use(rules)
    trace = with_classes(trace, rule_set)
    if rule_set is None or not rule_set.operators:
        return trace
    return trace.with_meta(operator_rules=rule_set.operators)


def _with_run_files(trace: Trace, folder: Path) -> Trace:
    """Return ``trace`` with the step times and environment of the recorded run ``folder``."""
    from traceana.errors import TraceanaError
    from traceana.runs.run_folders import is_run, read_run

    if not is_run(folder):
        return trace
    try:
        run = read_run(folder)
        timing, facts = run.timing(), run.recorded_with()
    except TraceanaError:
        # Its own commands say what is wrong with it: the trace does not need the file.
        return trace
    trace = trace.with_meta(properties={**trace.meta.properties, RECORDED_WITH: facts})
    if timing is None:
        return trace
    unprofiled, profiled = timing.without_profiler, timing.with_profiler
    return trace.with_meta(
        steps_run_ahead=profiled is not None and not profiled.synchronized,
        unprofiled_step_ns=None if unprofiled is None else unprofiled.step_ns,
        ready_share=0.0 if profiled is None else profiled.ready_share,
        spread_of_blocks=None if unprofiled is None else unprofiled.spread_of_blocks,
        gpu_clock_mhz=profiled.gpus[0].clock_mhz if profiled and profiled.gpus else None,
    )


def _manifest_of(model: Manifest | str | os.PathLike[str]) -> Manifest:
    from traceana.runs.layer_manifest import read

    return read(model) if isinstance(model, str | os.PathLike) else model


def _manifest_beside(source: Path) -> Manifest | None:
    """Return the manifest beside ``source``; warn if it cannot be read."""
    from traceana.errors import ManifestWarning, TraceanaError
    from traceana.runs.layer_manifest import find, read

    file = find(source)
    if file is None:
        return None
    try:
        return read(file)
    except TraceanaError as error:
        warnings.warn(f"manifest ignored: {error}", ManifestWarning, stacklevel=3)
        return None


def _code_beside(source: Path) -> Code | None:
    """Return the generated code in the folder of a run: ``source``, or the folder around it."""
    folder = (source if source.is_dir() else source.parent) / INDUCTOR_FOLDER
    return _code(folder) if folder.is_dir() else None


def _code_in(folder: Path) -> Code:
    """Return the generated code in ``folder``; raise if there is none."""
    if not folder.is_dir():
        raise NotFoundError(f"--inductor-cache {folder}: no such folder")
    code = _code(folder)
    if not code():
        raise UsageError(
            f"--inductor-cache {folder}: no generated code of a graph; give the "
            "TORCHINDUCTOR_CACHE_DIR of the recorded process"
        )
    return code


def _code(folder: Path) -> Code:
    # Read once for all ranks of a run.
    @cache
    def graphs() -> Collection[Graph]:
        from traceana.enrich.layers.generated_code import graphs_in

        return graphs_in(folder)

    return graphs


def _with_counters(trace: Trace, path: Path, progress: Progress) -> Trace:
    from traceana.enrich.counters import with_counters
    from traceana.readers import read_counters

    if trace.tables.activities.is_empty() and trace.tables.counters.height:
        raise InvalidInputError(
            f"{trace.meta.source}: contains counters and no timeline; give a trace to join "
            f"{path} to"
        )
    measured = read_counters(path, progress)
    joined = with_counters(trace, measured.tables.counters)
    with_ledger = joined.with_tables(
        ledger=pl.concat([joined.tables.ledger, measured.tables.ledger])
    )
    properties = {
        **trace.meta.properties,
        "counters_file": as_unicode(str(path)),
        "counters_producer": measured.meta.producer,
    }
    if messages := measured.meta.properties.get("counters_messages"):
        properties["counters_messages"] = messages
    return with_ledger.with_meta(properties=properties)


def _reference(path: Path, progress: Progress) -> Reference:
    from traceana.enrich import reference
    from traceana.readers import read
    from traceana.trace.bundle import is_bundle

    if is_bundle(path):
        raise UsageError(f"--capture {path}: a saved bundle; give the trace that it was saved from")
    return reference(read(path, progress))
