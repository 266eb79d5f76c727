"""The lines of the program's own files as ranges in the profiler's stream, and their copies."""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
import linecache
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from .process_report import Report, Settings, guarded

MARK = "traceana line: "
MOST_RANGES = 200_000
"""Ranges of lines in a window, and then of functions; after these nothing is recorded."""
_WHOLE = 0
"""Stands for the line of a frame whose range is that of its function."""
_JUDGED_AT = 5_000
_FAST_NS = 5_000
_OFTEN = 50
"""A function whose lines and calls were reported so many times, each within so many nanoseconds in
the mean, is recorded as a whole; one with fewer lines a call than the last number, not at all."""

FOLDER = "source"
LISTING = "files.json"
_LARGEST = 1 << 20
_MOST_BYTES = 16 << 20
"""Bytes of a copied file, and of all together."""

# The truth of a tensor is computed as well: ``if loss:`` waits for a GPU.
_CALLING = re.compile(
    r"CALL|PRECALL|BINARY_|INPLACE_|COMPARE_OP|CONTAINS_OP|UNARY_|TO_BOOL|.*JUMP.*_IF_(TRUE|FALSE)"
    r"|FOR_ITER|SEND|YIELD_FROM|GET_|UNPACK_|LOAD_(ATTR|METHOD|SUPER_ATTR|SPECIAL|BUILD_CLASS)"
    r"|(STORE|DELETE)_(ATTR|SUBSCR|SLICE)|BEFORE_|SETUP_(ASYNC_)?WITH|WITH_EXCEPT_START|IMPORT_"
    r"|FORMAT_|CONVERT_VALUE|(LIST|SET|DICT)_(EXTEND|UPDATE|MERGE)|MATCH_"
)
"""Names of the instructions that may run other code."""
_NOTEBOOK_CELL = re.compile(r"<ipython-input-|<cell |.*[/\\]ipykernel_\d+[/\\]\d+\.py\Z")
_PAUSING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OPENERS = ("torch", "jax", "jaxlib", "tensorflow", "nvtx")
"""Packages whose functions open and close the ranges."""


class _Function:
    """A code of the program: the texts of its lines, and how often it was reported.

    ``whole``: its frames have one range each. ``skipped``: they have none.
    """

    __slots__ = ("calls", "events", "names", "since", "skipped", "too_fast", "whole")

    def __init__(self, code: CodeType, file: str) -> None:
        function = getattr(code, "co_qualname", code.co_name)
        lines = sorted(calling_lines(code))
        self.names = {line: f"{MARK}{file}({line}): {function}" for line in lines}
        # A comprehension's line would be reported for each of its items.
        self.whole, self.skipped, self.too_fast = len(lines) <= 1, False, False
        first = lines[0] if len(lines) == 1 else code.co_firstlineno
        self.names[_WHOLE] = f"{MARK}{file}({first}): {function}"
        self._restart()

    def _restart(self) -> None:
        self.calls = self.events = 0
        self.since = perf_counter_ns()

    def is_too_fast(self) -> bool:
        """Judge the last :data:`_JUDGED_AT` reports: whether to record less from now on."""
        fast = perf_counter_ns() - self.since < _JUDGED_AT * _FAST_NS
        if fast:
            self.skipped = self.whole or self.events < _OFTEN * self.calls
            self.whole = self.too_fast = True
        self._restart()
        return fast


class _Place:
    """A running frame: its line, and the range that is open for it."""

    __slots__ = ("code", "function", "line", "range", "whole")

    def __init__(self, code: CodeType, function: _Function) -> None:
        self.code, self.function = code, function
        self.line = 0
        self.range: Any = None
        self.whole = False


class LineRanges:
    """Ranges around the executed lines of the program's own files, from ``begin`` to ``end``.

    ``opener`` returns the context manager of the range with the given text. Ranges of a thread are
    opened and closed in it, the last one first. Python's monitoring reports the lines, before
    Python 3.12 its trace function, which is left alone if a debugger or coverage has set it.
    """

    def __init__(self, opener: Callable[[str], Any], settings: Settings, report: Report) -> None:
        self._open, self._settings, self._report = opener, settings, report
        self._on, self._forks = False, False
        self._end: Callable[[], None] = lambda: None
        self._left, self._functions = MOST_RANGES, False
        self._own_files: _OwnFiles | None = None
        # A code is kept, so that its id stays its own.
        self._known: dict[int, tuple[CodeType, _Function | None]] = {}
        self._stacks: dict[int, list[_Place]] = {}

    def begin(self) -> None:
        """Open the ranges of the lines that are running in this thread, and follow the program."""
        if not self._settings.lines:
            return
        self._left, self._functions = MOST_RANGES, False
        self._known, self._stacks = {}, {}
        if not self._forks:
            self._forks = True
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._forked)
        guarded(self._start, self._report)

    def _start(self) -> None:
        # A profiler that cannot open ranges fails here, before the first line.
        self._open(MARK)
        self._own_files = _OwnFiles()
        if sys.version_info >= (3, 12):
            self._monitor()
        else:
            self._trace()

    def between(self, action: Callable[[], None]) -> None:
        """Call ``action`` while no range of this thread is open, as at the end of a step."""
        stack = [*self._stack()] if self._on else []
        for place in reversed(stack):
            self._close(place)
        try:
            action()
        finally:
            for place in stack:
                self._move(place, place.line)

    def end(self) -> None:
        """Close the ranges of this thread; other threads close theirs at their next line."""
        if self._on:
            self._on = False
            guarded(self._end, self._report)
        self._leave_all(self._stack())

    def keep_files(self) -> None:
        """Keep the files, or their digests, in the folder ``source`` of the recording."""
        if self._own_files is None:
            return
        if self._functions:
            after = "then nothing" if self._left <= 0 else "then functions"
            self._report.note(
                f"lines of the program: only the first {MOST_RANGES:,} of the profiled steps are "
                f"recorded, {after}"
            )
        whole = [
            function.names[_WHOLE].removeprefix(MARK)
            for _, function in self._known.values()
            if function is not None and function.too_fast
        ]
        if whole:
            more = f" and {len(whole) - 3} more" if len(whole) > 3 else ""
            self._report.note(
                "lines that ran too often are recorded by function, or by the line that calls it: "
                f"{', '.join(whole[:3])}{more}"
            )
        own, target = self._own_files, Path(self._settings.folder, FOLDER)
        if own.by_name or own.cells:
            guarded(lambda: _keep(target, own, copy=self._settings.source), self._report)

    def _forked(self) -> None:
        """Stop in a child process: its lines are in no trace."""
        if self._on:
            self._on = False
            self._end()

    # Frames and their ranges.

    def _stack(self) -> list[_Place]:
        return self._stacks.setdefault(threading.get_ident(), [])

    def _move(self, place: _Place, line: int) -> None:
        """Close the range of a frame, and open that of its next line.

        That of a whole function stays until it returns.
        """
        if place.whole and place.range is not None and self._on:
            place.line = line
            return
        opened, place.range, place.line = place.range, None, line
        whole = self._functions or place.function.whole
        name = place.function.names.get(_WHOLE if whole else line)
        try:
            if opened is not None:
                opened.__exit__(None, None, None)
            if name is None or not self._on:
                return
            if self._left <= 0:
                if self._functions:
                    self.end()
                    return
                self._left, self._functions = MOST_RANGES, True
                whole, name = True, place.function.names[_WHOLE]
            self._left -= 1
            place.whole = whole
            opened = self._open(name)
            opened.__enter__()
            place.range = opened
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def _close(self, place: _Place) -> None:
        opened, place.range = place.range, None
        if opened is not None:
            try:
                opened.__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001
                self._failed(error)

    def _leave_all(self, stack: list[_Place]) -> None:
        while stack:
            self._close(stack.pop())

    def _failed(self, error: Exception) -> None:
        """End the ranges; an error that a signal's handler raised is the program's own."""
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        module = "" if at is None else str(at.tb_frame.f_globals.get("__name__", ""))
        if module != __name__ and module.partition(".")[0] not in _OPENERS:
            raise error
        self.end()
        self._report.note(f"lines of the program: {type(error).__name__}: {str(error)[:200]}")

    def _function(self, code: CodeType) -> _Function | None:
        """Return what is known of a code, None of one that is not the program's own."""
        if id(code) not in self._known:
            assert self._own_files is not None
            file = self._own_files.name_of(code.co_filename)
            self._known[id(code)] = code, None if file is None else _Function(code, file)
        return self._known[id(code)][1]

    def _running(self) -> list[tuple[FrameType, _Function]]:
        """Return the frames of the program that run in this thread, outermost first."""
        found = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            function = self._function(frame.f_code)
            if function is not None:
                found.append((frame, function))
            frame = frame.f_back
        return found[::-1]

    # Python 3.11 and earlier.

    def _trace(self) -> None:
        if sys.gettrace() is not None:
            self._report.note("lines of the program not recorded: a debugger or coverage traces it")
            return
        known, function_of, move = self._known, self._function, self._move

        def entered(code: CodeType, function: _Function) -> tuple[_Place, Any]:
            place = _Place(code, function)
            stack = self._stack()
            stack.append(place)

            def traced(frame: FrameType, event: str, _: Any) -> Any:
                if not self._on:
                    self._leave_all(stack)
                    sys.settrace(None)
                    return None
                if event == "line":
                    line = frame.f_lineno
                    function.events += 1
                    if function.events == _JUDGED_AT and function.is_too_fast():
                        frame.f_trace_lines = False
                        move(place, line)
                    elif line != place.line:
                        move(place, line)
                elif event == "return":
                    self._close(place)
                    if stack and stack[-1] is place:
                        stack.pop()
                    elif place in stack:
                        stack.remove(place)
                return traced

            return place, traced

        # Each call of Python comes here, also those of libraries: what is left alone comes first.
        ignored: set[int] = set()

        def called(frame: FrameType, _event: str, _argument: Any) -> Any:
            if id(frame.f_code) in ignored:
                return None
            if not self._on:
                self._leave_all(self._stack())
                sys.settrace(None)
                return None
            code = frame.f_code
            seen = known.get(id(code))
            function = function_of(code) if seen is None else seen[1]
            if function is None or function.skipped:
                ignored.add(id(code))
                return None
            function.calls += 1
            function.events += 1
            if function.events == _JUDGED_AT and function.is_too_fast() and function.skipped:
                return None
            place, traced = entered(code, function)
            if function.whole:
                frame.f_trace_lines = False
                move(place, frame.f_lineno)
            elif code.co_flags & _PAUSING:
                # It may go on within a line.
                move(place, frame.f_lineno)
            return traced

        before: Any = getattr(threading, "_trace_hook", None)
        running = self._running()

        def restore() -> None:
            for frame, _ in running:
                frame.f_trace, frame.f_trace_lines = None, True
            running.clear()
            ignored.clear()
            if sys.gettrace() is called:
                sys.settrace(None)
            if getattr(threading, "_trace_hook", None) is called:
                threading.settrace(before)

        self._on, self._end = True, restore
        for frame, function in running:
            place, frame.f_trace = entered(frame.f_code, function)
            self._move(place, frame.f_lineno)
        if before is None:
            threading.settrace(called)
        sys.settrace(called)

    # Python 3.12 and later.

    def _monitor(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        events, known = monitoring.events, self._known
        tools = (monitoring.PROFILER_ID, 3, 4)
        tool = next((tool for tool in tools if monitoring.get_tool(tool) is None), None)
        if tool is None:
            self._report.note("lines of the program not recorded: other tools monitor it")
            return
        monitoring.use_tool_id(tool, "traceana lines")
        local = events.LINE | events.PY_RETURN | events.PY_YIELD | events.PY_RESUME

        def function_of(code: CodeType) -> _Function | None:
            seen = known.get(id(code))
            if seen is not None:
                return seen[1]
            function = self._function(code)
            if function is not None:
                monitoring.set_local_events(tool, code, local)
            return function

        def begun(code: CodeType, function: _Function) -> _Place | None:
            function.calls += 1
            function.events += 1
            if function.events == _JUDGED_AT:
                function.is_too_fast()
            if function.skipped:
                return None
            place = _Place(code, function)
            self._stack().append(place)
            return place

        def entered(code: CodeType, *_: Any) -> Any:
            function = function_of(code)
            place = None if function is None else begun(code, function)
            if place is None:
                return monitoring.DISABLE
            if place.function.whole:
                self._move(place, code.co_firstlineno)
            return None

        def resumed(code: CodeType, *_: Any) -> None:
            function = function_of(code)
            place = None if function is None else begun(code, function)
            if place is not None:
                self._move(place, sys._getframe(1).f_lineno)

        def at_line(code: CodeType, line: int) -> Any:
            stack = self._stack()
            function = function_of(code)
            if function is None or function.skipped:
                return monitoring.DISABLE
            if not stack or stack[-1].code is not code:
                # A frame of another thread, which was running before.
                stack.append(_Place(code, function))
            place = stack[-1]
            function.events += 1
            if (function.events == _JUDGED_AT and function.is_too_fast()) or line != place.line:
                self._move(place, line)
            return monitoring.DISABLE if function.whole else None

        def left(code: CodeType, *_: Any) -> None:
            stack = self._stack()
            if stack and stack[-1].code is code:
                self._close(stack.pop())

        callbacks = {
            events.PY_START: entered,
            events.PY_RESUME: resumed,
            events.PY_THROW: resumed,
            events.LINE: at_line,
            events.PY_RETURN: left,
            events.PY_YIELD: left,
            events.PY_UNWIND: left,
        }

        def restore() -> None:
            monitoring.set_events(tool, 0)
            for code, function in [*known.values()]:
                if function is not None:
                    monitoring.set_local_events(tool, code, 0)
            for event in callbacks:
                monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)

        self._on, self._end = True, restore
        for frame, function in self._running():
            monitoring.set_local_events(tool, frame.f_code, local)
            place = _Place(frame.f_code, function)
            self._stack().append(place)
            self._move(place, frame.f_lineno)
        for event, callback in callbacks.items():
            monitoring.register_callback(tool, event, callback)
        # What another tool with this id left switched off is reported again.
        monitoring.restart_events()
        monitoring.set_events(tool, events.PY_START | events.PY_THROW | events.PY_UNWIND)


_CALLING_OPCODES = frozenset(
    number for name, number in dis.opmap.items() if _CALLING.match(name) is not None
)


def calling_lines(code: CodeType) -> set[int]:
    """Return the lines of ``code`` with instructions that may run other code."""
    instructions = code.co_code
    starts = [*dis.findlinestarts(code), (len(instructions), None)]
    return {
        line
        for (begin, line), (end, _) in zip(starts, starts[1:])  # noqa: B905, RUF007
        if line is not None and not _CALLING_OPCODES.isdisjoint(instructions[begin:end:2])
    }


class _OwnFiles:
    """The program's own files, and their names in the ranges."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        package = Path(__file__).parents[2]
        foreign = [paths["stdlib"], paths["platstdlib"], paths["scripts"], package]
        foreign += [Path(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)]
        # What Inductor generates is a file as well.
        if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
            foreign.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        self._foreign = _begins(foreign)
        self._folders = _begins([self._program_folder()])
        self.folder = self._folders[0]
        """The program's folder, which its files are relative to."""
        self._names: dict[str, str | None] = {}
        self.by_name: dict[str, str] = {}
        """The files by name."""
        self.cells: dict[str, str] = {}
        """The texts of a notebook's cells by name."""

    def name_of(self, path: str) -> str | None:
        """Return the name of the file of a code: relative to the program's folder if it is inside.

        None for one that is not the program's own.
        """
        if path not in self._names:
            self._names[path] = self._name_of(path)
        return self._names[path]

    def _name_of(self, path: str) -> str | None:
        if _NOTEBOOK_CELL.match(path):
            text = "".join(linecache.getlines(path))
            name = _cell(text) or path
            self.cells[name] = text
            return name
        whole = os.path.abspath(path)  # noqa: PTH100
        if self._is_foreign(whole) or not os.path.isfile(whole):  # noqa: PTH113
            return None
        folder = next((begin for begin in self._folders if whole.startswith(begin)), "")
        name = whole[len(folder) :].replace(os.sep, "/")
        self.by_name[name] = whole
        return name

    def _is_foreign(self, path: str) -> bool:
        parts = Path(path).parts
        return (
            path.startswith(self._foreign)
            or "site-packages" in parts
            or "dist-packages" in parts
            or parts[-1].startswith("__autograph_generated_file")
            or any(part.startswith("torchinductor_") for part in parts)
        )

    def _program_folder(self) -> str:
        """Return the folder of the script, of a module that of its package's top.

        It is the current folder if another program, such as pytest or Jupyter, runs the code.
        """
        main = sys.modules.get("__main__")
        file = getattr(main, "__file__", None)
        if file is None or self._is_foreign(os.path.abspath(file)):  # noqa: PTH100
            return os.getcwd()  # noqa: PTH109
        folder = Path(os.path.abspath(file)).parent  # noqa: PTH100
        spec = getattr(main, "__spec__", None)
        depth = 0 if spec is None else spec.name.count(".")
        return str(folder.parents[depth - 1] if 0 < depth <= len(folder.parents) else folder)


def _cell(text: str) -> str | None:
    """Return the name of the last executed cell of the notebook with this text: ``<cell 7>``."""
    cells = getattr(sys.modules.get("__main__"), "In", None)
    numbers = [
        number
        for number, cell in enumerate(cells if isinstance(cells, list) else [])
        if isinstance(cell, str) and cell.strip() and cell.strip() == text.strip()
    ]
    return f"<cell {numbers[-1]}>" if numbers else None


def _begins(folders: list[Any]) -> tuple[str, ...]:
    """Return the beginnings of the paths inside ``folders``, also where these are links."""
    whole = [os.path.abspath(folder) for folder in folders]  # noqa: PTH100
    both = [*whole, *map(os.path.realpath, whole)]
    return tuple(dict.fromkeys(os.path.join(path, "") for path in both))  # noqa: PTH118


def _keep(folder: Path, own: _OwnFiles, *, copy: bool) -> None:
    """Copy the program's files into ``folder``, where another process of the run may have some.

    Without ``copy`` only their digests are kept.
    """
    listing = folder / LISTING
    kept: dict[str, str | None] = {}
    digests: dict[str, str] = {}
    if listing.exists():
        known = json.loads(listing.read_text("utf-8"))
        kept, digests = known["files"], known["sha256"]
    copies = [path for path in kept.values() if path is not None]
    room = _MOST_BYTES - sum((folder / path).stat().st_size for path in copies)
    contents = {name: text.encode("utf-8", "replace") for name, text in own.cells.items()}
    for name, path in own.by_name.items():
        # The file may be gone since.
        if os.path.isfile(path) and os.path.getsize(path) <= _LARGEST:  # noqa: PTH113, PTH202
            contents[name] = Path(path).read_bytes()
    for name, content in sorted(contents.items()):
        inside = name.replace(":", "")
        if Path(name).is_absolute():
            inside = f"absolute/{inside.lstrip('/')}"
        if name in kept or inside == LISTING:
            continue
        kept[name], digests[name] = None, hashlib.sha256(content).hexdigest()
        if copy and len(content) <= room:
            room -= len(content)
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            kept[name] = inside
    if kept:
        folder.mkdir(exist_ok=True)
        scratch = folder / f"{LISTING}.{os.getpid()}"
        described = {"folder": own.folder, "files": kept, "sha256": digests}
        scratch.write_text(json.dumps(described), encoding="utf-8")
        scratch.replace(listing)
