"""Recording of one run: its steps without and with a profiler, and the files of its folder."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from traceana.comparison.resampling import relative_interval, smallest_p, statistic
from traceana.cores import cores
from traceana.errors import (
    CannotWriteError,
    MissingDependencyError,
    RecordingError,
    TraceanaError,
    UsageError,
)
from traceana.record.child_process import EXIT_TIMEOUT, Exit, run_child
from traceana.record.nsys import TRIALS, check_nsys, find_nsys, is_profiled
from traceana.record.outcome import Launch, Outcome, ProcessReport, Subject
from traceana.record.partial_folder import PartialFolder
from traceana.runs.run_files import (
    ENVIRONMENT_FILE,
    INDUCTOR_FOLDER,
    LAYERS_FILE,
    RUN_FILE,
    SOURCE_FOLDER,
    TIMING_FILE,
    Environment,
    Gpu,
    Profiler,
    Run,
    Status,
    StepTimes,
    Timing,
)
from traceana.runs.run_folders import RecordedRun
from traceana.settings import BUSY_MACHINE, OVERHEAD_LEVEL
from traceana.version import __version__
from traceana.vocabulary.option_words import Statistic

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LEAST_FREE: Final = 1 << 16
"""Free bytes below which the disk counts as full; a full disk truncates the trace."""

OUT_OF_MEMORY: Final = "out of memory"
_OUT_OF_MEMORY_WORDS: Final = (
    "out of memory",
    "outofmemory",
    "memoryerror",
    "resource_exhausted",
    "resourceexhausted",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate memory",
    "bad_alloc",
    "status_alloc_failed",
)
"""Parts of error messages of CUDA, PyTorch, TensorFlow, XLA, NumPy and Python, in lower case."""
_LONGEST: Final = 200


class Request(msgspec.Struct, frozen=True):
    """How to record a run.

    With ``baseline`` the command is run without the profiler first, to time its steps. ``options``
    are the arguments of ``record``. ``point`` is the point of a sweep. With ``keep_failures``, as
    in a sweep, a run without a trace is kept with its reason; otherwise an error is raised. A
    process has ``exit_timeout`` seconds to exit. ``progress`` receives progress messages.
    """

    baseline: bool = False
    options: Sequence[str] = ()
    point: Mapping[str, str] = msgspec.field(default_factory=dict)
    keep_failures: bool = False
    exit_timeout: float = EXIT_TIMEOUT
    progress: Callable[[str], None] = lambda _: None


def check_profiler(profiler: Profiler | None) -> None:
    """Raise an error if no profiler can run in this process."""
    if profiler is not Profiler.NONE and is_profiled():
        raise RecordingError(
            "already running under nsys or another profiler, and CUPTI supports one: record "
            "without that profiler, or with --profiler none"
        )
    if profiler is Profiler.NSYS:
        check_nsys()


def overhead(
    without: StepTimes | None, profiled_times: StepTimes | None
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the profiler's relative overhead per step, and the bounds of its interval.

    The overhead is the ratio of the medians minus 1, or of the means if only the sum of the steps
    is exact. The interval is a bootstrap interval over the steps of both runs at
    :data:`OVERHEAD_LEVEL`, None with fewer than 3 steps per run. The overhead is None unless the
    interval is above 0: below 0 the runs differ for other reasons.
    """
    if without is None or profiled_times is None:
        return None, None
    plain = np.array(without.steps_ns, dtype=np.float64)
    profiled = np.array(profiled_times.steps_ns, dtype=np.float64)
    too_few = smallest_p(len(plain), len(profiled)) > 1 - OVERHEAD_LEVEL + 1e-9
    if too_few or min(plain.min(), profiled.min()) <= 0:
        return None, None
    is_exact = without.synchronized and profiled_times.synchronized
    average: Statistic = "median" if is_exact else "mean"
    interval = relative_interval(plain, profiled, average, OVERHEAD_LEVEL)
    share = statistic(profiled, average) / statistic(plain, average) - 1
    return (share if interval[0] > 0 else None), interval


def record(subject: Subject, target: Path, request: Request) -> RecordedRun:
    """Return the recorded run of ``subject`` in the folder ``target``, which is written atomically.

    The run of a failed command is kept with its reason. Raises ``RecordingError``,
    ``CannotWriteError``, ``MissingDependencyError`` and the
    errors of ``subject``; the folder does not exist then.
    """
    subject.check()
    check_profiler(subject.profiler)
    folder = PartialFolder(target)
    return complete(folder, Recording(subject, folder, request).launched)


def complete(partial: PartialFolder, write: Callable[[], Run]) -> RecordedRun:
    """Write the files of a run and rename its folder; delete the folder on an error."""
    target = partial.target
    try:
        run = write()
        partial.finish()
    except OSError as error:
        partial.discard()
        if error.errno in _FULL:
            raise _no_space(target) from error
        raise CannotWriteError(f"cannot write {target}: {error.strerror}") from error
    except BaseException:
        partial.discard()
        raise
    return RecordedRun(target, run)


class Recording:
    """The launches of one run, and the files of its folder."""

    def __init__(self, subject: Subject, partial: PartialFolder, request: Request) -> None:
        """Prepare the recording of ``subject`` into ``partial``."""
        self._subject, self._partial, self._request = subject, partial, request
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._recorded = subject.profiler is not Profiler.NONE
        self._overdue: str | None = None
        self._plain = Outcome()
        self._names: tuple[str, ...] | None = None
        self._commit = _commit()

    def launched(self) -> Run:
        """Launch the subject, write the files, and return the content of ``traceana-run.json``."""
        if self._request.baseline or not self._recorded:
            if self._recorded:
                self._request.progress("running without a profiler first (--baseline-run)")
            plain, end = self._launched(recorded=False)
            self._plain = plain
            if end.interrupted or _died(plain, end):
                return self.written(plain, None, end)
            if plain.times is None and self._subject.profiler is not Profiler.NSYS:
                # Without a step, the profiler has nothing to record.
                return self.written(plain, plain, end)
            if not self._recorded:
                return self.written(plain, None, end)
            self._request.progress("running with the profiler")
        profiled, end = self._launched(recorded=True)
        return self.written(self._plain, profiled, end)

    def scratch(self, *, recorded: bool) -> Path:
        """Return a folder for the files of a launch, deleted when the run is written."""
        return self._partial.scratch(".profiled" if recorded else ".plain")

    def _launched(self, *, recorded: bool) -> tuple[Outcome, Exit]:
        scratch = self.scratch(recorded=recorded)
        launch = self._subject.launch(scratch, recorded=recorded)
        end = self._run(launch, scratch)
        if end.overdue:
            self._overdue = (
                f"a process did not exit within {self._request.exit_timeout:g} s (--exit-timeout) "
                "and was killed"
            )
        outcome = self._subject.outcome(scratch, recorded=recorded)
        self.raise_problems(outcome)
        return outcome, end

    def _run(self, launch: Launch, scratch: Path) -> Exit:
        """Run the command, again if the profiler did not start it.

        Raises ``MissingDependencyError`` if it never starts it.
        """
        for trial in range(TRIALS):
            if trial:
                self._request.progress("the profiler did not start the command: trying again")
            meanwhile = partial(self._publish, scratch) if launch.announced else lambda: True
            end = run_child(launch, scratch, self._request.exit_timeout, meanwhile)
            if launch.started is None or launch.started.exists() or end.interrupted:
                return end
        if self._is_full():
            raise _no_space(self._partial.target)
        raise MissingDependencyError(
            f"{launch.words[0]} failed {TRIALS} times before it started the command (its messages "
            "are above): record again, or with --profiler auto"
        )

    def _publish(self, scratch: Path) -> bool:
        """Publish the run if all steps of its window are there; return whether that is decided.

        The command still runs. What fails here is tried again at its end, which reports it.
        """
        outcome = self._subject.outcome(scratch, recorded=True)
        if not (outcome.closed and outcome.traces):
            return False
        try:
            self.written(self._plain, outcome, Exit(0))
            self._partial.publish()
        except (TraceanaError, OSError):
            return True
        first = outcome.times.first if outcome.times is not None else None
        steps = ""
        if outcome.times is not None and first is not None:
            steps = f"steps {first} to {first + len(outcome.times.steps_ns) - 1} "
        self._request.progress(
            f"recorded {steps}in {self._partial.target}; the program goes on, and from here on "
            "Ctrl-C costs nothing of the recording"
        )
        return True

    def raise_problems(self, outcome: Outcome) -> None:
        """Raise ``CannotWriteError`` or ``RecordingError`` if a process reported one."""
        for process in outcome.processes:
            if process.problem is not None and process.problem.kind == "no space":
                raise _no_space(self._partial.target)
            if process.problem is not None and process.problem.kind == "conflict":
                raise RecordingError(
                    f"{process.problem.text}, and CUPTI supports one profiler: remove it from the "
                    "script, or open the trace that the script writes"
                )

    def written(self, plain: Outcome, profiled: Outcome | None, end: Exit) -> Run:
        """Write the files of the run and return the content of ``traceana-run.json``."""
        last = profiled or plain
        names, unusable = (self._names or ()), None
        if profiled is not None and not names:
            names, unusable = self._kept(profiled)
            self._names = names
        nothing = None
        if profiled is not None and not names:
            nothing = unusable or self._nothing(profiled)
        if end.interrupted and not names:
            raise KeyboardInterrupt(end.interrupted)
        if isinstance(nothing, CannotWriteError):
            raise nothing
        status, why = self._status(last, end, nothing)
        gpus, unlisted = self._gpus
        notes = dict.fromkeys([*plain.notes, *last.notes, *unlisted])
        if self._overdue is not None:
            notes[self._overdue] = None
        if nothing is not None and why != str(nothing):
            notes[str(nothing)] = None
        if names and last.times is not None and (busy := _busy_machine(last.times)):
            notes[busy] = None
        if status is Status.COMPLETE and (ended := ended_by(end, last.processes)):
            notes[f"after the recorded steps the program ended: {ended}"] = None
        run = Run(
            status=status,
            reason=why,
            workload=last.workload or plain.workload,
            point=dict(self._request.point),
            argv=self._subject.argv,
            profiler=self._subject.profiler or last.profiler or Profiler.NONE,
            traces=names,
            started_at=self._started,
            exit_status=None if end.overdue else end.status,
            notes=tuple(notes),
        )
        profiled_times = profiled.times if profiled is not None and names else None
        without = plain.times or last.without_profiler
        share, interval = overhead(without, profiled_times)
        timing = Timing(
            images_per_step=last.images_per_step or plain.images_per_step,
            without_profiler=without,
            with_profiler=profiled_times,
            overhead=share,
            overhead_interval=interval,
        )
        processes = (*last.processes, *plain.processes)
        options = self._request.options
        surroundings = environment(processes, run.profiler, options, gpus, self._commit)
        self._partial.write(TIMING_FILE, timing)
        self._partial.write(ENVIRONMENT_FILE, surroundings)
        self._partial.write(RUN_FILE, run)
        return run

    @cached_property
    def _gpus(self) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        return gpus_by_driver()

    def _status(
        self, last: Outcome, end: Exit, nothing: TraceanaError | None
    ) -> tuple[Status, str | None]:
        """Return status and reason of the run; raise an error if it is not kept."""
        if last.closed and self._names:
            # Whatever the program did later is not in the recording.
            return Status.COMPLETE, None
        if end.interrupted:
            return Status.INTERRUPTED, ended_by(end, ())
        if _died(last, end):
            if last.refused is not None and not self._request.keep_failures:
                raise UsageError(f"the workload rejected its options: {last.refused}")
            why = reason(end, last.refused, last.processes)
            if "No space left on device" in why and self._is_full():
                raise _no_space(self._partial.target)
            return Status.FAILED, why
        if nothing is not None:
            if not self._request.keep_failures:
                raise nothing
            return Status.FAILED, str(nothing)
        return Status.COMPLETE, None

    def _kept(self, profiled: Outcome) -> tuple[tuple[str, ...], TraceanaError | None]:
        """Move the traces into the run's folder; return their names, or why they are unusable."""
        if not profiled.traces:
            return (), None
        unusable = why_unusable(profiled.traces)
        if unusable is not None:
            if self._is_full():
                raise _no_space(self._partial.target)
            return (), unusable
        for path in profiled.traces:
            path.replace(self._partial.folder / path.name)
            report = path.with_suffix(".nsys-rep")
            if report.is_file():
                report.replace(self._partial.folder / report.name)
        if profiled.layers is not None:
            profiled.layers.replace(self._partial.folder / LAYERS_FILE)
        for name in (INDUCTOR_FOLDER, SOURCE_FOLDER):
            code = profiled.traces[0].parent / name
            if code.is_dir():
                code.replace(self._partial.folder / name)
        return tuple(path.name for path in profiled.traces), None

    def _nothing(self, profiled: Outcome) -> TraceanaError:
        if self._is_full():
            return _no_space(self._partial.target)
        return RecordingError(f"nothing was recorded: {profiled.why_nothing}")

    def _is_full(self) -> bool:
        disk = os.statvfs(self._partial.path)
        return disk.f_bavail * disk.f_frsize < _LEAST_FREE


def _busy_machine(times: StepTimes) -> str | None:
    """Return a note if threads waited for a processor in the profiled steps."""
    if times.other_cores is None or times.ready_share < BUSY_MACHINE:
        return None
    return (
        f"busy machine: other processes used {times.other_cores:.1f} of {os.cpu_count()} "
        "processors and kept a thread waiting for one for up to "
        f"{100 * times.ready_share:.0f} % of the profiled steps"
    )


def _died(outcome: Outcome, end: Exit) -> bool:
    """Return whether the command failed, by exit status or, if killed here, by its exceptions."""
    if not end.overdue:
        return end.status != 0
    return any(
        process.exception is not None and not process.stopped for process in outcome.processes
    )


def _no_space(target: Path) -> CannotWriteError:
    return CannotWriteError(
        f"no space left for {target}: the run was not kept; free some space, record fewer "
        "--steps, or use a folder on another disk"
    )


def why_unusable(traces: Sequence[Path]) -> TraceanaError | None:
    """Return the error that prevents the use of ``traces`` by other commands, or None."""
    from traceana.opening import open_trace
    from traceana.timeline.work import why_no_work, work

    try:
        trace = open_trace(list(traces) if len(traces) > 1 else traces[0])
    except TraceanaError as error:
        return RecordingError(f"the profiler's trace cannot be read: {error}")
    if trace.meta.truncated:
        return RecordingError("the profiler's trace is truncated: record it again")
    if work(trace).is_empty():
        return RecordingError(f"the profiler recorded nothing: {why_no_work(trace)}")
    return None


def reason(end: Exit, refused: str | None, processes: Sequence[ProcessReport]) -> str:
    """Return why a command failed: ``out of memory``, an exception, a signal, an exit status."""
    raised = [process.exception for process in processes if process.exception is not None]
    texts = [f"{exception.type}: {exception.text}".lower() for exception in raised]
    if end.out_of_memory or any(word in text for text in texts for word in _OUT_OF_MEMORY_WORDS):
        return OUT_OF_MEMORY
    if end.status < 0 and not end.overdue:
        return f"signal {signal_name(-end.status)}"
    if refused is not None:
        return f"rejected its options: {refused}"
    if raised:
        first = " ".join(raised[0].text.split())[:_LONGEST]
        return f"{raised[0].type.removeprefix('builtins.')}: {first}"
    return f"exit status {end.status}"


def ended_by(end: Exit, processes: Sequence[ProcessReport]) -> str | None:
    """Return by what a command ended: a signal of the user's, or a failure; None if neither."""
    if end.interrupted:
        by = " (Ctrl-C)" if end.interrupted == signal.SIGINT else ""
        return f"interrupted by {signal_name(end.interrupted)}{by}"
    return reason(end, None, processes) if end.status and not end.overdue else None


def signal_name(number: int) -> str:
    """Return the name of a signal, its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


_VARIABLES: Final = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_CUDNN_V8_API_DISABLED"),
    *("XLA_FLAGS", "JAX_PLATFORMS", "TF_XLA_FLAGS", "TF_CUDNN_USE_AUTOTUNE", "KERAS_BACKEND"),
    *("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "NCCL_ALGO", "NCCL_P2P_DISABLE"),
)
"""Environment variables that affect algorithms, precision or devices."""


def environment(
    processes: Sequence[ProcessReport],
    profiler: Profiler,
    options: Sequence[str],
    gpus: tuple[Gpu, ...],
    commit: str | None = None,
) -> Environment:
    """Return the environment of a run, with versions from the training process.

    ``gpus`` are those of the machine, in place of the process's own where it has no report of them.
    """
    report = next((process for process in processes if process.packages), None)
    if report is not None and report.gpus:
        driver = gpus[0].driver if gpus else None
        gpus = tuple(
            Gpu(
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                driver=driver,
                compute_capability=gpu.compute_capability,
            )
            for gpu in report.gpus
        )
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    cpus = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return Environment(
        traceana=__version__,
        python=None if report is None else report.python,
        system=platform.platform(),
        machine=platform.machine(),
        cpu=next(cpus, platform.processor() or "unknown"),
        cpu_cores=cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        threads=None if report is None else report.threads,
        packages={} if report is None else report.packages,
        libraries={} if report is None else report.libraries,
        gpus=gpus,
        profiler_version=_profiler_version(profiler, report),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        commit=commit,
        options=tuple(options),
    )


def _commit() -> str | None:
    """Return the commit of the repository around the current folder; None outside of one."""
    try:
        described = _output(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.strip() or None


def _profiler_version(profiler: Profiler, report: ProcessReport | None) -> str | None:
    if profiler is Profiler.NSYS:
        try:
            output = _output([find_nsys(), "--version"])
        except (OSError, subprocess.SubprocessError):
            return None
        return output.rpartition(" ")[2].strip() or None
    packages = {} if report is None else report.packages
    names = {
        Profiler.TORCH: ("torch",),
        Profiler.TENSORFLOW: ("tensorflow", "tensorflow-cpu"),
        Profiler.JAX: ("jaxlib",),
    }.get(profiler, ())
    return next((packages[name] for name in names if name in packages), None)


def gpus_by_driver() -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return the GPUs that ``nvidia-smi`` lists, and a note if it is there and fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ()
    fields = "name,memory.total,driver_version,compute_cap"
    try:
        output = _output([program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    except subprocess.CalledProcessError as failed:
        return (), (f"GPUs unknown: nvidia-smi ended with exit status {failed.returncode}",)
    except (OSError, subprocess.TimeoutExpired):
        return (), ("GPUs unknown: nvidia-smi did not answer",)
    gpus = []
    for line in output.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == 4:
            name, mebibytes, driver, capability = values
            memory = int(mebibytes) << 20 if mebibytes.isdecimal() else None
            gpus.append(
                Gpu(name=name, memory_bytes=memory, driver=driver, compute_capability=capability)
            )
    return tuple(gpus), ()


def _output(words: list[str]) -> str:
    """Return what a program prints; raises the errors of ``subprocess.run``."""
    return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
