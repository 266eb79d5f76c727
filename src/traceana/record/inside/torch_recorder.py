"""Records the window with torch.profiler."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from .report import Report, guarded
from .settings import Settings
from .window import Recorder


class TorchRecorder(Recorder):
    """torch.profiler with shapes, and a range around each layer's forward pass.

    Its warm-up is the last step before the window, if there is one.
    """

    def __init__(self, torch: Any, settings: Settings, report: Report, model: Any) -> None:
        self._torch, self._settings, self._report = torch, settings, report
        self._model = model
        self._profiler: Any = None
        self._stopped: Any = None

    def prepare(self) -> None:
        """Start the profiler's own warm-up."""
        self._start(warm_up=1)

    def begin(self) -> None:
        """Begin the window."""
        # First what takes time: the profiler's first step begins where this ends.
        self._model.mark(self._torch.profiler.record_function)
        if self._profiler is None:
            self._start(warm_up=0)
        else:
            self._profiler.step()
        if self._profiler is None:
            self._model.unmark()

    def step(self, number: int) -> None:  # noqa: ARG002  # the profiler counts by itself
        """Mark the step."""
        if self._profiler is not None:
            self._profiler.step()

    def stop(self) -> None:
        """Stop the profiler, whose last step ends here, then the ranges."""
        self._stopped, self._profiler = self._profiler, None
        if self._stopped is not None:
            self._stopped.stop()
            self._model.unmark()

    def write(self) -> str | None:
        """Write the trace, compressed, and the model's layers."""
        if self._stopped is None:
            return None
        rank = self._model.rank
        name = "trace.json.gz" if rank is None else f"trace.rank{rank}.json.gz"
        folder = Path(self._settings.folder)
        _write(self._stopped, folder / name)
        self._model.describe(folder)
        return name

    def _start(self, warm_up: int) -> None:
        profiler = self._torch.profiler
        if self._torch.autograd._profiler_enabled():
            self._report.problem("conflict", "the script runs torch.profiler itself")
            return
        _give_way_to_others(self._torch, self)
        with warnings.catch_warnings():
            # It says that without its warm-up figures are skewed; --warm-up 1 asked for that.
            warnings.simplefilter("ignore")
            window = profiler.schedule(wait=0, warmup=warm_up, active=self._settings.steps)
            self._profiler = profiler.profile(schedule=window, record_shapes=True)
            self._profiler.start()

    def give_way(self) -> None:
        """End a recording because the script starts a profiler of its own."""
        if self._profiler is not None:
            self._report.problem("conflict", "the script runs torch.profiler itself")
            guarded(self.stop, self._report)
            self._stopped = None


def _give_way_to_others(torch: Any, recorder: TorchRecorder) -> None:
    """Have ``recorder`` end when another profiler starts: two would end the script."""
    kind = torch.autograd.profiler.profile
    prepare = getattr(kind, "_prepare_trace", None)
    if prepare is None:
        return

    def watched(profiler: Any, *arguments: Any, **keywords: Any) -> Any:
        own = getattr(recorder._profiler, "profiler", None)
        if recorder._profiler is not None and own is not profiler:
            recorder.give_way()
        return prepare(profiler, *arguments, **keywords)

    kind._prepare_trace = watched


def _write(profiler: Any, path: Path) -> None:
    # The profiler's own compression leaves the name of a temporary file in the trace.
    plain = path.with_suffix("")
    packed = path.with_name(f"{path.name}.new")
    try:
        profiler.export_chrome_trace(str(plain))
        # The profiler does not tell that it could not write: the file or its end is then missing.
        if not plain.exists():
            raise OSError(errno.ENOSPC, "torch.profiler could not write its trace")
        with plain.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16))
            if not file.read().rstrip().endswith(b"}"):
                raise OSError(errno.ENOSPC, "torch.profiler's trace is cut off")
            file.seek(0)
            with gzip.open(packed, "wb", compresslevel=6) as target:
                shutil.copyfileobj(file, target, 1 << 20)
        packed.replace(path)
    finally:
        # What could not be written keeps the profiler's own ending.
        for left in (plain, packed, plain.with_name(f"{plain.name}.tmp")):
            left.unlink(missing_ok=True)
