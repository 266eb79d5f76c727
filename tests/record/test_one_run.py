"""What ``record`` does to the program: nothing that its user would see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import traceana
from tests.record.conftest import Record, notes
from tests.support.frameworks import needs
from traceana.runs import Status, is_run, read_run

pytestmark = pytest.mark.frameworks
Write = Callable[[str], Path]

# It makes its folder, reads its input, logs, draws random numbers, saves in `finally`.
PROGRAM = """
import os, sys
import torch

os.makedirs("made")
torch.manual_seed(7)
torch.set_num_threads(1)
steps = int(sys.stdin.readline())
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters())
try:
    for number in range(steps):
        loss = net(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("log", "a") as log:
            print(number, loss.item(), file=log)
finally:
    torch.save(net.state_dict(), "made/last.pt")
    print("saved after", number + 1, "steps:", loss.item())
if sys.argv[1] == "signal":
    os.kill(os.getpid(), 15)
sys.exit(int(sys.argv[1]))
"""


def ran(command: list[str], folder: Path, steps: int) -> tuple[int, str, dict[str, bytes]]:
    """Return exit status, standard output and the files of a command."""
    folder.mkdir()
    done = subprocess.run(
        command,
        cwd=folder,
        input=f"{steps}\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return done.returncode, done.stdout, files


@pytest.mark.parametrize(("ending", "steps"), [("0", 40), ("3", 25), ("71", 9), ("signal", 40)])
def test_the_program_runs_as_without_record(
    ending: str, steps: int, script: Write, tmp_path: Path
) -> None:
    needs("torch")
    command = [sys.executable, str(script(PROGRAM)), ending]
    record = [sys.executable, "-m", "traceana", "record", "-q", "-o", str(tmp_path / "run"), "--"]
    recorded = ran([*record, *command], tmp_path / "with", steps)
    assert recorded == ran(command, tmp_path / "without", steps)
    run = read_run(tmp_path / "run")
    assert run.run.exit_status == recorded[0]
    timing = run.timing()
    if steps == 9:
        # Five steps of warm-up, two that are timed, one for the profiler's warm-up, and one.
        assert run.run.status is Status.FAILED
        assert notes(run.run) == (
            "1 of 10 steps recorded: the script ended (--no-baseline: 3 more)",
        )
        assert traceana.open(run.folder).tables.steps["number"].to_list() == [9]
        return
    assert run.run.status is Status.COMPLETE
    assert timing is not None
    assert timing.with_profiler is not None
    assert timing.without_profiler is not None
    assert (timing.with_profiler.first, len(timing.with_profiler.steps_ns)) == (9, 10)
    # Behind step 19, in which the process recovers, up to ten.
    assert timing.without_profiler.steps_before == 2
    assert len(timing.without_profiler.steps_ns) == 2 + min(10, steps - 19)
    assert traceana.open(run.folder).tables.steps["number"].to_list() == [*range(9, 19)]


def test_quiet_prints_nothing(record: Record, script: Write, tmp_path: Path) -> None:
    needs("torch")
    command = ("--", sys.executable, script(PROGRAM), "0")
    done = record("-q", "-o", tmp_path / "run", *command, cwd=tmp_path, input="40\n")
    assert done.returncode == 0
    assert done.stdout.startswith("saved after 40 steps")
    assert "traceana" not in done.stderr


def test_a_program_that_records_nothing_has_its_own_status(record: Record, tmp_path: Path) -> None:
    done = record("-o", tmp_path / "run", "--", sys.executable, "-c", "raise SystemExit(5)")
    assert done.returncode == 5
    done = record("-o", tmp_path / "other", "--", sys.executable, "-c", "pass")
    assert done.returncode == 71


ENDLESS = """
import itertools
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for number in itertools.count():
    net(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    if number in (0, 40):
        print(number, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_closed_window_is_kept_whatever_ends_the_recording(
    number: signal.Signals, script: Write, tmp_path: Path
) -> None:
    needs("torch")
    command = [sys.executable, "-m", "traceana", "record", "-o", str(tmp_path / "run"), "--"]
    process = subprocess.Popen(
        [*command, sys.executable, str(script(ENDLESS))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    line = ""
    while "recorded steps 9 to 18" not in line:
        line = process.stderr.readline()
        assert line, "the recording ended"
    assert line.endswith("Ctrl-C costs nothing of the recording\n")
    assert is_run(tmp_path / "run")
    assert traceana.open(tmp_path / "run").tables.steps.height == 10
    process.send_signal(number)
    process.communicate(timeout=60)
    # The program ends by SIGINT and SIGTERM itself, and record as the program.
    assert process.returncode == -number
    run = read_run(tmp_path / "run").run
    assert run.status is Status.COMPLETE
    if number != signal.SIGKILL:
        assert not (tmp_path / "run.partial").exists()
        assert notes(run) == (
            f"after the recorded steps the program ended: interrupted by {number.name}"
            f"{' (Ctrl-C)' if number == signal.SIGINT else ''}",
        )
    _no_process_left(process.pid)


def _no_process_left(group: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("a process is left")


def test_a_run_of_its_own_times_the_steps_on_demand(
    record: Record, script: Write, tmp_path: Path
) -> None:
    needs("torch")
    options = ("--baseline-run", "-o", tmp_path / "run")
    content = PROGRAM.replace('os.makedirs("made")', 'os.makedirs("made", exist_ok=True)')
    content = content.replace("int(sys.stdin.readline())", "40")
    command = ("--", sys.executable, script(content), "0")
    done = record(*options, *command, cwd=tmp_path)
    timing = read_run(tmp_path / "run").timing()
    assert timing is not None
    assert timing.without_profiler is not None
    assert timing.with_profiler is not None
    assert timing.without_profiler.steps_before is None
    # Both are of steps 6 to 15.
    assert timing.with_profiler.first == timing.without_profiler.first == 6
    assert "(--baseline-run)" in done.stderr


INFERENCE = {
    "torch": """
import torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
with torch.no_grad():
    for number in range(40):
        net(torch.randn(8, 16))
# The calls are as they were.
print(type(net).__call__ is torch.nn.modules.module.Module._wrapped_call_impl)
""",
    "tensorflow": """
import keras
import numpy as np
layers = [keras.layers.Input((8, 8, 3)), keras.layers.Conv2D(4, 3, name="conv1")]
model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
model.predict(np.ones((200, 8, 8, 3), "f"), batch_size=5, verbose=0)
print(True)
""",
    "jax": """
import jax
import jax.numpy as jnp
predict = jax.jit(lambda w, x: jnp.tanh(x @ w))
w, x = jnp.ones((64, 8)), jnp.ones((4, 64))
for number in range(40):
    predict(w, x).block_until_ready()
print(True)
""",
}


@pytest.mark.parametrize(
    "framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.exhaustive), "jax"]
)
def test_the_steps_of_an_inference_are_its_calls(
    framework: str, record: Record, script: Write, tmp_path: Path
) -> None:
    needs(framework)
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    command = ("--", sys.executable, script(INFERENCE[framework]))
    done = record("-o", tmp_path / "run", *command, env=environment)
    assert (done.returncode, done.stdout) == (0, "True\n")
    run = read_run(tmp_path / "run")
    (note,) = notes(run.run)
    assert "the steps are the calls of" in note
    timing = run.timing()
    assert timing is not None
    assert timing.with_profiler is not None
    assert timing.without_profiler is not None
    assert (timing.with_profiler.first, len(timing.with_profiler.steps_ns)) == (9, 10)
    assert len(timing.without_profiler.steps_ns) == 12
    trace = traceana.open(run.folder)
    assert trace.tables.steps["number"].to_list() == [*range(9, 19)]
    assert (run.layers is not None) is (framework != "jax")


EVALUATED_FIRST = {
    "torch": """
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
with torch.no_grad():
    for number in range(30):
        net(torch.randn(8, 16))
for number in range(30):
    net(torch.randn(8, 16)).sum().backward()
    optimizer.step()
""",
    # Twelve calls: the window of the calls has begun to record when the optimizer is made.
    "torch later": """
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(16, 4)
with torch.no_grad():
    for number in range(12):
        net(torch.randn(32, 16))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for number in range(30):
    net(torch.randn(8, 16)).sum().backward()
    optimizer.step()
""",
    "jax": """
import jax
import jax.numpy as jnp
loss = lambda w, x: ((x @ w) ** 2).mean()
evaluate, step = jax.jit(loss), jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x))
w, x = jnp.ones((64, 8)), jnp.ones((4, 64))
for number in range(12):
    evaluate(w, x).block_until_ready()
for number in range(30):
    w = step(w, x).block_until_ready()
""",
}


@pytest.mark.parametrize("program", EVALUATED_FIRST)
def test_an_evaluation_before_the_training_is_no_step(
    program: str, record: Record, script: Write, tmp_path: Path
) -> None:
    needs(program.partition(" ")[0])
    content = EVALUATED_FIRST[program]
    record("-o", tmp_path / "run", "--", sys.executable, script(content))
    run = read_run(tmp_path / "run")
    assert notes(run.run) == ()
    timing = run.timing()
    assert timing is not None
    assert timing.without_profiler is not None
    assert len(timing.without_profiler.steps_ns) == 12
    assert traceana.open(run.folder).tables.steps.height == 10


def test_an_interrupt_within_the_window_ends_the_program_as_without_record(
    script: Write, tmp_path: Path
) -> None:
    """The trace of the steps so far is written at its end; its status is that of the signal."""
    needs("torch")
    command = [sys.executable, "-m", "traceana", "record", "--steps", "100000"]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "run"), "--", sys.executable, str(script(ENDLESS))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "40\n":
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    run = read_run(tmp_path / "run").run
    assert (run.status, run.reason) == (Status.INTERRUPTED, "interrupted by SIGINT (Ctrl-C)")
    assert traceana.open(tmp_path / "run").tables.steps.height > 30
    _no_process_left(process.pid)
