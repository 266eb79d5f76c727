"""What ``diff`` says of recorded pairs on a CPU: of one program, and of planted slowdowns.

    python -m benchmarks.recorded_pairs FOLDER [BURNING]

Records a small network six times, and once with each change of :data:`PLANTED`, into new folders of
FOLDER. Two recordings of one program differ in nothing: a verdict ``faster`` or ``slower`` of these
15 pairs is wrong. Of a planted change the first change that ``diff`` lists should name it. BURNING
processes load the machine meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Final

import traceana
from traceana.comparison.diff import Diff

PROGRAM: Final = """
import os
import time
import torch

PLANTED = os.environ.get("PLANTED", "")
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
layers += [torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU()]
if PLANTED == "layers":
    layers += [torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU()]
layers += [torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(32 * 64, 10)]
network = torch.nn.Sequential(*layers)
memory_format = torch.channels_last if PLANTED == "channels_last" else torch.contiguous_format
network = network.to(memory_format=memory_format)


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * 40

    def __getitem__(self, index):
        if PLANTED == "loader":
            time.sleep(0.0005)
        return torch.full((3, 32, 32), index / 640), index % 10


optimizer = torch.optim.SGD(network.parameters(), 0.01)
for images, labels in torch.utils.data.DataLoader(Images(), 16):
    images = images.to(memory_format=memory_format)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    optimizer.step()
    if PLANTED == "sleep":
        time.sleep(0.005)
    if PLANTED == "item":
        # A check of all weights, as for NaN, whose result is waited for.
        sum(p.double().pow(2).sum().sqrt().item() for p in network.parameters() for _ in range(20))
"""
PLANTED: Final = ("layers", "loader", "sleep", "channels_last", "item")
RUNS: Final = 6
_BURN: Final = "while True: pass"


def recorded(folder: Path, name: str, planted: str = "") -> Path:
    """Record the program and return the folder of the run."""
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    target = folder / name
    command = [sys.executable, "-m", "traceana", "record", "-q", "--force", "-o", str(target), "--"]
    environment = {**os.environ, "PLANTED": planted}
    subprocess.run([*command, sys.executable, str(program)], env=environment, check=True)
    return target


def described(name: str, of: Diff) -> str:
    """Return a row of the table: the step, its verdict and the first changes."""
    step = of.step.decides
    rows = of.changes.filter(~of.changes["number"].str.contains(".", literal=True)).head(2)
    first = "; ".join(
        f"{row['change']} {row['subject'] or row['layer_b'] or row['layer_a'] or ''}".strip()
        for row in rows.iter_rows(named=True)
    )
    times = f"{step.a / 1e6:.2f} → {step.b / 1e6:.2f} ms"
    return f"| {name} | {times} | {step.verdict} | {first} |"


def main() -> None:
    """Record, compare, print two tables."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    burning = [
        subprocess.Popen([sys.executable, "-c", _BURN])
        for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    ]
    try:
        same = [recorded(folder, f"same{number}") for number in range(RUNS)]
        planted = {name: recorded(folder, name, name) for name in PLANTED}
    finally:
        for process in burning:
            process.kill()
            process.wait()
    verdicts = [traceana.diff(a, b).summary.step.decides.verdict for a, b in combinations(same, 2)]
    wrong = sum(verdict in ("faster", "slower") for verdict in verdicts)
    print(f"one program: {len(verdicts) - wrong} of {len(verdicts)} pairs without a verdict\n")
    print("| planted | step | verdict | first changes |\n|---|---|---|---|")
    for name, run in planted.items():
        print(described(name, traceana.diff(same[-1], run).summary))


if __name__ == "__main__":
    main()
