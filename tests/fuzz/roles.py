"""The ways in which an input is opened: read only, or as the commands open it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import traceana
import traceana.enrich
import traceana.readers
from tests.fuzz.mutations import Input
from traceana.comparison.run_inputs import forced_pairs
from traceana.enrich.classify import rules_in_use
from traceana.enrich.classify.engine import classify_names
from traceana.errors import TraceanaError
from traceana.flops import timed_algorithms
from traceana.readers.nsys import is_export
from traceana.runs.layer_manifest import read as read_model
from traceana.study import timed_convolutions
from traceana.trace import Trace
from traceana.trace.bundle import is_bundle

_NAMES: Final = (
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    "volta_sgemm_128x64_nn",
    "Memcpy HtoD (Pageable -> Device)",
)
_LAYERS: Final = SimpleNamespace(
    layers=[SimpleNamespace(label=name) for name in ("Conv2d_0", "ReLU_0", "Linear_0")]
)


def only_read(given: Input, path: Path) -> Trace | None:
    """Read the files of ``given``, without attribution; return the Trace, None for an option's.

    Counters are returned as a Trace of their own.
    """
    role = given.seed.role
    if role == "trace" and is_one_trace(path):
        return traceana.readers.read(path)
    if role == "trace":
        return _read_folder(path)
    if role == "counters":
        return traceana.readers.read_counters(path)
    if role == "rules":
        classify_names(_NAMES, rules_in_use(path))
    elif role == "model":
        read_model(path)
    elif role == "pairs":
        layers: Any = _LAYERS
        forced_pairs(path, layers, layers)
    else:
        timed_convolutions.measurements(timed_algorithms.read(path))
    return None


def is_one_trace(path: Path) -> bool:
    """Return whether one reader reads ``path``: no bundle, no run, no folder of ranks."""
    return path.is_file() or is_export(path)


def _read_folder(path: Path) -> Trace:
    if is_bundle(path):
        return traceana.open(path)
    with (
        mock.patch.object(traceana.enrich, "attribute", lambda trace, *_: trace),
        mock.patch.object(traceana.enrich, "with_classes", lambda trace, _: trace),
    ):
        return traceana.open(path)


def opened(given: Input, path: Path) -> Trace | None:
    """Open the input as the commands do; return the Trace, None where there is none.

    An option's file is given with the trace beside it.
    """
    role = given.seed.role
    beside = path.parent / given.seed.beside
    if role == "algorithms":
        return None
    if role == "trace":
        trace = traceana.open(path)
        if path.is_dir():
            _batches(path)
        return trace
    if role == "pairs":
        trace = traceana.open(beside)
        traceana.diff(trace, trace, pairs=path)
        return None
    return traceana.open(
        beside,
        rules=path if role == "rules" else None,
        model=path if role == "model" else None,
        counters=path if role == "counters" else None,
    )


def _batches(path: Path) -> None:
    from traceana.runs import batch_series

    try:
        batch_series(path)
    except TraceanaError:
        return  # the command line leaves them out
