"""``traceana.recorder`` records the running process into the folder of ``traceana record``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import traceana
from tests.support.forked import script, with_keras, with_torch
from traceana.errors import CannotWriteError, RecordingError, UsageError
from traceana.runs import read_run
from traceana.runs.layer_manifest import read

TORCH = """
import sys, torch, traceana
from torch import nn

# A framework that a program hides is not imported.
sys.modules["jax"] = sys.modules["tensorflow"] = None
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.ones(48, 3, 8, 8), torch.zeros(48, dtype=torch.long)), 4)

def train(folder, fails):
    with traceana.recorder(folder, warm_up=2, steps=3) as recorder:
        callback = recorder.lightning_callback()
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            number == 7 and fails and 1 / 0
            callback.on_train_batch_end(None, model, None, (x, y), number)
    assert recorder.run.complete and not torch.autograd._profiler_enabled()

with traceana.recorder(sys.argv[1] + "-short", warm_up=2, steps=9) as recorder:
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        recorder.step()
        if number == 5:
            break
    loss(model(x), y)

train(sys.argv[1], fails=False)
try:
    train(sys.argv[1] + "-failed", fails=True)
except ZeroDivisionError:
    assert not torch.autograd._profiler_enabled()
"""

KERAS = """
import sys, keras, traceana
import numpy as np

model = keras.Sequential([keras.layers.Input((8, 8, 3)), keras.layers.Conv2D(4, 3, name="conv1"),
                          keras.layers.Flatten(), keras.layers.Dense(10, name="fc")])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
before = keras.Model.fit, keras.Model.__call__
with traceana.recorder(sys.argv[1], warm_up=2, steps=3) as recorder:
    model.fit(np.ones((60, 8, 8, 3), "f"), np.zeros(60, "i"), batch_size=5, verbose=0,
              callbacks=[recorder.keras_callback()])
with traceana.recorder(sys.argv[1] + "-short", warm_up=2, steps=9) as recorder:
    model.fit(np.ones((30, 8, 8, 3), "f"), np.zeros(30, "i"), batch_size=5, verbose=0,
              callbacks=[recorder.keras_callback()])
    model.predict(np.ones((5, 8, 8, 3), "f"), verbose=0)
assert (keras.Model.fit, keras.Model.__call__) == before
"""

JAX = """
import sys, jax, traceana
import jax.numpy as jnp

@jax.jit
def step(w, x):
    value, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * gradient, value

w, x = jnp.ones((16, 4)), jnp.ones((8, 16))
with traceana.recorder(sys.argv[1], warm_up=2, steps=3) as recorder:
    for _ in range(8):
        w, value = step(w, x)
        recorder.step(value)
with traceana.recorder(sys.argv[1] + "-short", warm_up=2, steps=9) as recorder:
    for _ in range(6):
        w, value = step(w, x)
        recorder.step(value.block_until_ready())
    step(w, x)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that runs a script in a separate process, once; returns the run's folder.

    The scripts record another run beside it, which ends before its window, and the one in PyTorch
    a third, which fails.
    """

    @cache
    def run(content: str) -> Path:
        folder = tmp_path_factory.mktemp("recorded") / "run"
        if content != JAX:
            forked = with_torch if content == TORCH else with_keras
            forked(folder.with_name("log"), script, content, str(folder))
            return folder
        command = [sys.executable, "-c", content, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return folder

    return run


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("script", "profiler", "layers", "batch"),
    [
        (TORCH, "torch", ["Conv2d", "ReLU", "Flatten", "Linear"], 4),
        (KERAS, "tensorflow", ["Conv2d", "Flatten", "Linear"], 5),
        (JAX, "jax", None, None),
    ],
    ids=["torch", "keras", "jax"],
)
def test_steps_are_recorded_into_a_run(
    script: str,
    profiler: str,
    layers: list[str] | None,
    batch: int | None,
    recorded: Callable[[str], Path],
) -> None:
    run = read_run(recorded(script))
    assert (run.run.status, run.run.profiler, run.run.exit_status) == ("complete", profiler, 0)
    timing, environment = run.timing(), run.environment()
    assert timing is not None
    assert timing.with_profiler is not None
    assert len(timing.with_profiler.steps_ns) == 3
    assert timing.images_per_step == batch
    assert environment is not None
    assert environment.packages["traceana"]
    trace = traceana.open(run.folder)
    assert trace.tables.steps.height == 3
    assert trace.tables.activities.height
    assert (run.layers is None) == (layers is None)
    if layers is not None and run.layers is not None:
        assert [layer.type for layer in read(run.layers).layers] == layers


@pytest.mark.frameworks
@pytest.mark.parametrize("script", [TORCH, KERAS, JAX], ids=["torch", "keras", "jax"])
def test_a_step_that_has_begun_and_does_not_end_is_none(
    script: str, recorded: Callable[[str], Path]
) -> None:
    run = read_run(recorded(script).with_name("run-short"))
    timing = run.timing()
    assert timing is not None
    assert timing.with_profiler is not None
    assert len(timing.with_profiler.steps_ns) == 4
    trace = traceana.open(run.folder)
    assert trace.tables.steps.height == 4
    work = trace.tables.activities.group_by("step").len().drop_nulls().sort("step")["len"]
    assert min(work) > 0.9 * max(work)


@pytest.mark.frameworks
def test_a_failed_block_is_a_failed_run_and_raises_on(recorded: Callable[[str], Path]) -> None:
    run = read_run(recorded(TORCH).with_name("run-failed"))
    assert run.run.status == "failed"
    assert run.run.reason == "ZeroDivisionError: division by zero"
    assert run.run.traces, "the window had ended before"


@pytest.mark.frameworks
def test_a_block_without_a_full_warm_up_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with (
        pytest.raises(RecordingError, match=r"step\(\) was called 2 times"),
        traceana.recorder(tmp_path / "run", warm_up=5, profiler="torch") as recorder,
    ):
        recorder.step()
        recorder.step()
    assert list(tmp_path.iterdir()) == []


def test_arguments_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        traceana.recorder(tmp_path / "run", warm_up=0)
    (tmp_path / "mine").mkdir()
    with (
        pytest.raises(CannotWriteError, match="not a recorded run"),
        traceana.recorder(tmp_path / "mine"),
    ):
        pass


@pytest.mark.parametrize(("model", "steps"), [(None, 2), (object(), 0)])
def test_optimizers_are_watched_in_a_block_whose_model_is_not_given(
    model: object, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[Callable[..., None]] = []

    def register(hook: Callable[..., None]) -> SimpleNamespace:
        hooks.append(hook)
        return SimpleNamespace(remove=lambda: hooks.remove(hook))

    torch = SimpleNamespace(
        distributed=SimpleNamespace(is_available=lambda: False),
        cuda=SimpleNamespace(is_initialized=lambda: False),
        autograd=SimpleNamespace(profiler=SimpleNamespace(profile=object)),
    )
    optimizer = SimpleNamespace(register_optimizer_step_post_hook=register)
    # Other tests of the same process may have imported the others.
    others = dict.fromkeys(("keras", "tensorflow", "jax"))
    for name, module in {"torch": torch, "torch.optim.optimizer": optimizer, **others}.items():
        monkeypatch.setitem(sys.modules, name, module)
    recorder = traceana.recorder(tmp_path / "run", warm_up=5, model=model)
    with pytest.raises(RecordingError, match=rf"step\(\) was called {steps} times"), recorder:
        assert len(hooks) == (model is None)
        for _ in range(steps):
            recorder.step()
    assert hooks == []
