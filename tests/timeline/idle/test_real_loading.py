"""Recorded training steps: deliberately slow loading differs from fast loading.

One small convolution is trained, in PyTorch and in TensorFlow, each in a process of its own under
its own profiler, with a data set that sleeps for every batch and then with one that does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.support.forked import script, with_keras, with_torch
from tests.support.frameworks import needs
from traceana.analyze.devices import devices
from traceana.timeline.idle import idle

pytestmark = pytest.mark.frameworks

SLEEP_S = 0.2
STEPS = 4

PYTORCH = """
import sys, time, torch
from torch.profiler import ProfilerActivity, profile, schedule

class Images(torch.utils.data.Dataset):
    def __init__(self, sleep):
        self.sleep = sleep
    def __len__(self):
        return 64
    def __getitem__(self, number):
        if number % 8 == 0:
            time.sleep(self.sleep)
        return torch.randn(3, 24, 24), number % 10

out, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 5), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 5), torch.nn.Flatten(),
    torch.nn.Linear(32 * 16 * 16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
when = schedule(wait=1, warmup=1, active=steps, repeat=1)
for sleep in sys.argv[3:]:
    loader = torch.utils.data.DataLoader(Images(float(sleep)), batch_size=8)
    with profile(activities=[ProfilerActivity.CPU], schedule=when) as profiler:
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(f"{out}/{sleep}/trace.json")
"""

KERAS = """
import os, sys, time
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import numpy as np, tensorflow as tf

out, steps = sys.argv[1], int(sys.argv[2])

def batches(sleep):
    random = np.random.default_rng(0)
    for _ in range(steps + 2):
        time.sleep(float(sleep))
        yield random.standard_normal((8, 24, 24, 3), dtype=np.float32), np.zeros(8, np.int64)

signature = (tf.TensorSpec((8, 24, 24, 3)), tf.TensorSpec((8,), tf.int64))
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(32, 5), tf.keras.layers.Conv2D(32, 5), tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10),
])
optimizer = tf.keras.optimizers.SGD()
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function
def train(images, labels):
    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=True))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return value

for sleep in sys.argv[3:]:
    made = tf.data.Dataset.from_generator(
        batches, args=[float(sleep)], output_signature=signature
    )
    iterator = iter(made.prefetch(2))
    for _ in range(2):
        train(*next(iterator)).numpy()
    tf.profiler.experimental.start(f"{out}/{sleep}")
    for number in range(steps):
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            train(*next(iterator)).numpy()
    tf.profiler.experimental.stop()
"""

FRAMEWORKS = {"torch": PYTORCH, "tensorflow": KERAS}


def figures(folder: Path) -> dict[str, Any]:
    """Return the figures of one run: steps, their wall time, their waits for a batch."""
    trace = traceana.open(folder)
    assert trace.on_cpu
    assert trace.tables.steps.height == STEPS
    causes = idle(trace).frame
    (place,) = devices(trace).frame.to_dicts()
    assert place["busy_ns"] + place["idle_ns"] == place["span_ns"]
    assert causes["time_ns"].sum() == place["idle_ns"]
    by_step = idle(trace, "step").frame.filter(pl.col("cause") == "data_loader")
    ranges = idle(trace, "range").frame.filter(pl.col("cause") == "data_loader")
    return {
        "waits": by_step["time_ns"].to_list(),
        "steps": trace.tables.steps["duration"].to_list(),
        "first": causes["cause"][0],
        "text": ranges["range"][0],
        "busy": place["busy_ns"],
    }


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_slow_loading_differs_from_fast_loading(framework: str, tmp_path: Path) -> None:
    needs(framework)
    folders = [tmp_path / str(sleep) for sleep in (SLEEP_S, 0.0)]
    for folder in folders:
        folder.mkdir()
    sleeps = [folder.name for folder in folders]
    words = (FRAMEWORKS[framework], str(tmp_path), str(STEPS), *sleeps)
    forked = with_keras if framework == "tensorflow" else with_torch
    forked(tmp_path / "log", script, *words)
    slow, quick = (figures(folder) for folder in folders)
    assert slow["first"] == "data_loader"
    assert ("DataLoader" if framework == "torch" else "IteratorGetNext") in slow["text"]
    # TensorFlow prefetches: while one batch is computed, however long that takes on a machine that
    # others use as well, the next is made, and what is left of that alone is waited for.
    longest = slow["waits"] if framework == "torch" else slow["steps"]
    assert max(longest) >= 0.75 * SLEEP_S * 1e9
    assert sum(quick["waits"]) < 0.25 * sum(slow["waits"])
    # What is computed is the same, and is not taken for loading.
    assert quick["busy"] > 0
    assert slow["busy"] > 0
