"""Marks the window by NVTX ranges: nsys begins and ends its recording with the outermost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .report import Report
from .settings import Settings
from .window import Recorder

CAPTURE = "traceana window"


class NvtxWindow(Recorder):
    """Ranges ``iteration N`` in one range around the window, by the ``nvtx`` package.

    ``model`` marks its layers, if there is one.
    """

    def __init__(self, settings: Settings, report: Report, model: Any = None) -> None:
        self._settings, self._report, self._model = settings, report, model
        self._nvtx: Any = None
        self._capture: Any = None
        self._operators: Any = None

    def begin(self) -> None:
        """Have nsys begin."""
        try:
            import nvtx
        except ImportError:
            self._report.problem(
                "profiler", "nsys is told of the steps by the nvtx package: pip install nvtx"
            )
            return
        self._nvtx = nvtx
        self._capture = nvtx.start_range(CAPTURE)
        nvtx.push_range("iteration 0")
        if self._model is not None:
            self._model.mark(nvtx.annotate)
            self._operators = self._model.operators_as_ranges()

    def step(self, number: int) -> None:
        """Mark the step."""
        if self._nvtx is not None:
            self._nvtx.pop_range()
            self._nvtx.push_range(f"iteration {number}")

    def stop(self) -> None:
        """Have nsys end."""
        if self._nvtx is not None:
            if self._operators is not None:
                self._operators.__exit__(None, None, None)
            if self._model is not None:
                self._model.unmark()
            self._nvtx.pop_range()
            self._nvtx.end_range(self._capture)

    def write(self) -> str | None:
        """Write the model's layers; nsys writes the trace itself."""
        if self._nvtx is not None and self._model is not None:
            self._model.describe(Path(self._settings.folder))
        return None


def refuse_torch_profiler(torch: Any, report: Report) -> None:
    """End the script where it starts torch.profiler: CUPTI has one client, and that is nsys."""
    kind = torch.autograd.profiler.profile

    def refused(*_: Any, **__: Any) -> Any:
        report.problem("conflict", "the script runs torch.profiler itself, beside nsys")
        sys.exit(2)

    kind._prepare_trace = refused
