"""Training scripts that do not import traceana."""

from __future__ import annotations

TORCH = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.fc = nn.Linear(8 * 14 * 14, 10)

    def forward(self, x):
        return self.fc(torch.flatten(self.features(x), 1))

if __name__ == "__main__":
    torch.set_num_threads(1)
    images, labels = torch.randn(48, 3, 16, 16), torch.zeros(48, dtype=torch.long)
    data = torch.utils.data.TensorDataset(images, labels)
    model, loss = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    print("trained", *sys.argv[1:], flush=True)
    raise ValueError("the script dies")
"""

KERAS = """
import keras
import numpy as np

layers = [keras.layers.Input((8, 8, 3)), keras.layers.Conv2D(4, 3, name="conv1")]
model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.ones((60, 8, 8, 3), "f"), np.zeros(60, "i"), batch_size=5, verbose=0)
"""

JAX = """
from functools import partial

import jax
import jax.numpy as jnp

def loss(w, x):
    with jax.named_scope("fc"):
        return ((x @ w) ** 2).mean()

class Trainer:
    @partial(jax.jit, static_argnums=0)
    def step(self, w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

w, x = jnp.ones((64, 8)), jnp.ones((4, 64))
evaluate = jax.jit(loss)
for _ in range(8):
    w = Trainer.step(Trainer, w, x)
    evaluate(w, x)
assert evaluate.lower(w, x).compile() is not None
"""

WAITING = """
import json, sys, time
from pathlib import Path

import jax
import jax.numpy as jnp

step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) @ w.T).sum())(w))
w, x = jnp.ones((256, 256)), jnp.ones((2048, 256))
begun = []
for _ in range(20):
    begun.append(time.perf_counter())
    w = step(w, x)
    if sys.argv[1] == "wait":
        w.block_until_ready()
begun.append(time.perf_counter())
Path(sys.argv[2]).write_text(json.dumps(begun))
"""

OWN_PROFILER = """
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.profiler.profile():
    for _ in range(20):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print("goes on", flush=True)
"""

DOES_NOT_EXIT = """
import signal
import subprocess
import sys
import threading
import time

import torch

class Hangs:
    def __del__(self):
        time.sleep(600)

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "in a thread":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
    threading.Thread(target=time.sleep, args=(600,)).start()
else:
    keeps = Hangs()
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
time.sleep(3)
print("goes on", flush=True)
"""

SLEEPS = """
import time
print("begun", flush=True)
time.sleep(60)
"""

COMPILED = """
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
run = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(6):
    optimizer.zero_grad()
    run(torch.ones(4, 3, 16, 16)).square().mean().backward()
    optimizer.step()
"""

TWO_MODELS = """
import torch
from torch import nn

class Critic(nn.Sequential):
    pass

torch.set_num_threads(1)
generator, critic = nn.Linear(4, 8), Critic(nn.Linear(8, 1))
first = torch.optim.Adam(critic.parameters())
other = torch.optim.SGD(OTHER.parameters(), lr=1e-3)
for _ in range(8):
    loss = critic(generator(torch.randn(16, 4))).mean()
    loss.backward()
    first.step()
    other.step()
"""
