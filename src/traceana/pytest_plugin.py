"""The pytest plugin: the fixture ``traceana_gate``, and baselines in the folder ``.traceana``.

pytest imports this module in every run where traceana is installed, so it imports nothing heavy
until a test uses the fixture.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from traceana.comparison.diff import Diff
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import Inconclusive

FOLDER: Final = ".traceana"
"""The folder of baselines in pytest's root folder."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_INCONCLUSIVE: Final = "traceana inconclusive"
"""The property of a test with a gate that is inconclusive and passes; xdist sends properties."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--traceana-save``, ``--traceana-compare`` and ``--traceana-force``."""
    group = parser.getgroup("traceana", "gates on GPU profiler traces")
    group.addoption(
        "--traceana-save",
        metavar="NAME",
        help=f"Save the trace of each traceana_gate as baseline NAME in {FOLDER}/.",
    )
    group.addoption(
        "--traceana-compare",
        metavar="NAME",
        help="Compare the trace of each traceana_gate without a baseline with baseline NAME.",
    )
    group.addoption(
        "--traceana-force",
        action="store_true",
        help="Let --traceana-save replace an existing baseline.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the names of the baselines."""
    for option in ("--traceana-save", "--traceana-compare"):
        name = config.getoption(option)
        if name is not None and not _NAME.fullmatch(name):
            raise pytest.UsageError(f"{option} {name!r}: use letters, digits, - and _ only")
    name = config.getoption("--traceana-compare")
    folder = config.rootpath / FOLDER
    if name is not None and not (folder / name).is_dir():
        kept = sorted(entry.name for entry in folder.glob("*") if entry.is_dir())
        there = f"baselines: {', '.join(kept)}" if kept else "no baselines saved"
        raise pytest.UsageError(f"no baseline {name} in {folder}; {there}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each gate that is inconclusive and passes."""
    reports = terminalreporter.stats.get("passed", [])
    lines = [
        f"{report.nodeid}: {value}"
        for report in reports
        for name, value in report.user_properties
        if name == _INCONCLUSIVE and report.when == "call"
    ]
    if lines:
        terminalreporter.section("traceana: inconclusive gates, passed")
        for line in lines:
            terminalreporter.write_line(line)


class GateResult(NamedTuple):
    """The result of a gate that passes.

    ``diff`` compares baseline and trace, None without a baseline. ``inconclusive`` has the reasons
    of gates without a verdict.
    """

    trace: Trace
    diff: Diff | None
    inconclusive: tuple[str, ...]


Gate = Callable[..., GateResult]


@pytest.fixture
def traceana_gate(request: pytest.FixtureRequest) -> Gate:
    """Return the function that fails the test where a trace is slower than its baseline, a rule of
    ``traceana advise`` holds, or a figure exceeds its limit; see docs/ci.md.
    """
    calls = 0

    def gate(
        trace: Trace | str | os.PathLike[str],
        baseline: Trace | str | os.PathLike[str] | None = None,
        max_slowdown: str | float = "3%",
        fail_on: str | Iterable[str] = (),
        max: Mapping[str, str | float] | None = None,  # noqa: A002  # that of the command line
        *,
        on_inconclusive: Inconclusive = "pass",
    ) -> GateResult:
        nonlocal calls
        calls += 1
        from traceana.errors import TraceanaError

        outcome: tuple[list[str], GateResult] | str
        try:
            outcome = _gated(request, calls, trace, baseline, max_slowdown, fail_on, max or {})
        except TraceanaError as error:
            outcome = str(error)
        if isinstance(outcome, str):  # outside the handler: pytest prints errors behind an error
            pytest.fail(f"traceana: {outcome}", pytrace=False)
        failed, result = outcome
        open_ = [f"{line}: failed" for line in result.inconclusive]
        if on_inconclusive == "fail":
            failed += open_
        else:
            request.node.user_properties += [(_INCONCLUSIVE, line) for line in result.inconclusive]
        if failed:
            pytest.fail("\n".join(f"traceana: gate: {line}" for line in failed), pytrace=False)
        return result

    return gate


def _gated(
    request: pytest.FixtureRequest,
    number: int,
    given: Trace | str | os.PathLike[str],
    baseline: Trace | str | os.PathLike[str] | None,
    max_slowdown: str | float,
    fail_on: str | Iterable[str],
    limits: Mapping[str, str | float],
) -> tuple[list[str], GateResult]:
    """Return the reasons of the gates that fail, and the result.

    Saves the trace where the options ask for it, also if a gate fails. Raises the errors of
    :mod:`traceana.errors`.
    """
    from traceana.advise import gates
    from traceana.comparison.run_inputs import opened, save_run
    from traceana.comparison.verdicts import percentage

    words = [fail_on] if isinstance(fail_on, str) else list(fail_on)
    rules = [rule for word in words for rule in gates.rules_of(word)]
    most = [gates.limit_of(f"{name}={_number(limit)}") for name, limit in limits.items()]
    slowdown = percentage(_number(max_slowdown))
    trace, model = opened(given)
    config, name = request.config, _file_name(request.node.nodeid, number)
    folder = config.rootpath / FOLDER
    compared = config.getoption("--traceana-compare")
    if baseline is None and compared is not None:
        kept = folder / compared / name
        baseline = kept
        if not kept.exists():
            pytest.fail(
                f"traceana: baseline {compared} has no trace of this test: save it with "
                f"--traceana-save {compared}",
                pytrace=False,
            )
    failed = _unfit(trace)
    inconclusive: list[str] = []
    run_diff: Diff | None = None
    if baseline is not None and not failed:
        before, model_before = opened(baseline)
        failed += [f"baseline: {line}" for line in _unfit(before)]
        if not failed:
            from traceana.report.pages.diff import diff

            run_diff = diff(before, trace, model_a=model_before, model_b=model).summary
            outcome, reason = run_diff.gated(slowdown)
            if outcome != "passed":
                (failed if outcome == "failed" else inconclusive).append(reason)
    if rules or most:
        from traceana.advise import advised
        from traceana.advise.figures import Figures
        from traceana.report.pages.advise import broken_gate
        from traceana.runs import batches_beside

        figures = Figures(trace, batches_beside(trace.meta.opened))
        for gate in gates.broken(figures, advised(figures), rules, most):
            (inconclusive if gate.unknown else failed).append(broken_gate(gate))
    saved = config.getoption("--traceana-save")
    if saved is not None:
        force = config.getoption("--traceana-force")
        save_run(folder / saved, name, trace, model, replace=force)
    return failed, GateResult(trace, run_diff, tuple(inconclusive))


def _unfit(trace: Trace) -> list[str]:
    """Return why the gates cannot judge ``trace``: the commands exit with 17 or 20."""
    from traceana.timeline.work import any_work, why_no_work

    skipped = trace.tables.ledger.filter(trace.tables.ledger["reason"] == "skipped_file")
    reasons = [f"{trace.meta.source}: skipped: {why}" for why in skipped["detail"]]
    if trace.meta.truncated:
        reasons.append(f"{trace.meta.source}: truncated file")
    if not any_work(trace):
        reasons.append(f"{trace.meta.source}: nothing to show: {why_no_work(trace)}")
    return reasons


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else format(value, ".12f")


def _file_name(test: str, number: int) -> str:
    """Return the name of the baseline of the gate ``number`` of a test, by its node id."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", test.rpartition("/")[2]).strip("-_")[:80]
    unique = hashlib.sha256(f"{test} {number}".encode()).hexdigest()[:8]
    return f"{readable}-{unique}"
