"""Run by test_workload_losses.py: ``python losses.py FRAMEWORK "OPTIONS" "OPTIONS" …``.

Prints the losses of three training steps with each of the options, as a list of lists.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workloads.options import parse_run_options
from workloads.support import Framework, supported

# A network without dropout or batch statistics: how the batch is shared changes nothing.
RUN = "--network cifar10_quick --width-divisor 4 --batch 4 --steps 3 --warm-up 0"

if __name__ == "__main__":
    framework = Framework(sys.argv[1])
    train = importlib.import_module(f"workloads.{framework.lower()}.train")
    found = []
    for words in sys.argv[2:]:
        step = train.prepare(
            supported(parse_run_options([*RUN.split(), *words.split()]), framework)
        )
        found.append([float(step()) for _ in range(3)])
    print(json.dumps(found))
