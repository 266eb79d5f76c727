"""The commands as methods of a Trace, with the names and the options of ``traceana NAME``.

A method runs the command's analysis and returns its :class:`Result`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from traceana.choices import (
        CriticalBy,
        FlopsBy,
        IdleBy,
        KernelsBy,
        LayersBy,
        MemoryBy,
        TransfersBy,
    )
    from traceana.model import Manifest
    from traceana.result import Result
    from traceana.runs import BatchSeries
    from traceana.trace.trace import Trace
    from traceana.whatif.scenario import Scenario


class Commands:
    """The analyses of a Trace; every method returns a :class:`~traceana.result.Result`."""

    __slots__ = ()

    def report(self, *, batches: BatchSeries | None = None) -> Result:
        """Return the time by class; its page is the summary of the run.

        ``batches`` are the step times of runs that differ in the batch size only; by default those
        of the sweep of the recorded run.
        """
        from traceana.report.pages.report import report

        return report(self._trace, batches=batches or self._batches())

    def info(self) -> Result:
        """Return the contents of the file: format, devices, counts, integrity."""
        from traceana.report.pages.info import info

        return info(self._trace)

    def advise(self, *, rule: str | None = None, batches: BatchSeries | None = None) -> Result:
        """Return the recommendations, largest estimated saving first.

        With ``rule``, return that recommendation with its evidence.
        ``batches`` are those of :meth:`report`.
        """
        from traceana.advise import advise
        from traceana.report.pages.advise import advised

        found = advise(self._trace, batches=batches or self._batches())
        return advised(self._trace, found, rule=rule)

    def _advice_to_keep(self) -> bytes | None:
        """Return the recommendations for a bundle; None for a summary, which has no timeline, and
        where they cannot be found, which ``advise`` on the bundle says."""
        from traceana.advise import advise, kept
        from traceana.errors import TraceanaError

        try:
            return None if self._trace.is_summary else kept.written(advise(self._trace))
        except TraceanaError:
            return None

    def kernels(self, *, by: KernelsBy = "name", unclassified: bool = False) -> Result:
        """Return calls, time and class of each kernel; optionally only ``unclassified`` ones.

        ``by`` shape: time of each kernel by operator and input shapes.
        """
        from traceana import choices
        from traceana.report.pages.kernels import kernels

        choices.check(by, choices.KernelsBy)
        return kernels(self._trace, by=by, unclassified=unclassified)

    def layer_times(
        self,
        *,
        by: LayersBy = "layer",
        depth: int | None = None,
        direction: bool = False,
        model: Manifest | None = None,
    ) -> Result:
        """Return time by direction, FLOPs, FLOP/s and algorithms of each layer.

        The command is ``layers``; ``trace.layers`` is the table of layers. ``depth`` groups
        layers by the first parts of their paths; with ``direction`` there is one row per layer and
        pass. ``model`` replaces the manifest of :func:`traceana.open`.
        """
        from traceana import choices
        from traceana.report.pages.layers import layers

        choices.check(by, choices.LayersBy)
        trace = self._trace
        manifest = model or trace.manifest
        return layers(trace, by=by, depth=depth, direction=direction, model=manifest)

    def flops(
        self, *, by: FlopsBy = "operator", explain: bool = False, model: Manifest | None = None
    ) -> Result:
        """Return FLOPs and compulsory bytes by operator, by class with its roofline, or by shapes.

        With ``explain``, return the formulas in use with their derivations and operators.
        """
        from traceana import choices
        from traceana.report.pages.layers import flops

        choices.check(by, choices.FlopsBy)
        trace = self._trace
        return flops(trace, by=by, explain=explain, model=model or trace.manifest)

    def transfers(self, *, by: TransfersBy = "direction", collectives: bool = False) -> Result:
        """Return copies by direction and host memory; or ``collectives`` by message size."""
        from traceana import choices
        from traceana.report.pages.transfers import transfers

        choices.check(by, choices.TransfersBy)
        return transfers(self._trace, by=by, collectives=collectives)

    def idle(self, *, by: IdleBy = "cause") -> Result:
        """Return GPU idle time by cause, by cause and ``by``, or by gap."""
        from traceana import choices
        from traceana.report.pages.idle import idle

        choices.check(by, choices.IdleBy)
        return idle(self._trace, by=by)

    def critical(self, *, by: CriticalBy = "class") -> Result:
        """Return the critical path of the measured steps."""
        from traceana import choices
        from traceana.report.pages.idle import critical

        choices.check(by, choices.CriticalBy)
        return critical(self._trace, by=by)

    def whatif(
        self,
        scenario: str | Scenario | Sequence[str | Scenario] = (),
        *,
        sweep: bool = False,
        replay: bool = False,
    ) -> Result:
        """Return the predicted step time of each ``scenario``, by replaying the trace.

        A scenario is text such as ``"conv x 0.5"``, a name, a TOML file or a
        :class:`~traceana.whatif.scenario.Scenario`; without one, the default scenarios. With
        ``replay`` nothing is changed: the row has the error of the replay.
        """
        from traceana.report.pages.whatif import whatif

        return whatif(self._trace, scenario, sweep=sweep, replay=replay)

    def memory_use(self, *, by: MemoryBy = "device") -> Result:
        """Return allocated memory: peak per device, its contents, growth per step.

        The command is ``memory``; ``trace.memory`` is the table of allocator events.
        """
        from traceana import choices
        from traceana.report.pages.memory import memory

        choices.check(by, choices.MemoryBy)
        return memory(self._trace, by=by)

    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the trace for another tool and return the path, whose ending is the format.

        ``.perfetto.json`` is for Perfetto, ``.speedscope.json`` for speedscope; either with
        ``.gz``. ``.duckdb`` is a DuckDB database of the tables. Raises
        :class:`~traceana.errors.CannotWriteError` on another ending, and if ``path`` exists and
        ``overwrite`` is false.
        """
        from traceana.files import check_free, write_output
        from traceana.report.exports import exporter

        target = Path(path)
        made = exporter(target.name)
        check_free(target, force=overwrite)
        write_output(target, made(self._trace), force=overwrite)
        return target

    def select(
        self,
        *,
        steps: Collection[int] | None = None,
        devices: Collection[int] | None = None,
        ranks: Collection[int] | None = None,
    ) -> Trace:
        """Return the trace with only the activities of these steps, devices and ranks."""
        from traceana.timeline.steps import select

        return select(self._trace, steps=steps, devices=devices, ranks=ranks)

    @property
    def _trace(self) -> Trace:
        return cast("Trace", self)

    def _batches(self) -> BatchSeries | None:
        """Return the steps of the run that was opened and of its siblings at other batch sizes.

        None if there are none; or if one cannot be read, with a warning.
        """
        opened = self._trace.meta.opened
        if len(opened) != 1 or not Path(opened[0]).is_dir():
            return None
        from traceana.runs import batches_beside

        return batches_beside(opened[0])
