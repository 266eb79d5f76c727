"""The losses of training steps, for test_workload_losses.py.

``python losses.py OUTPUT FRAMEWORK "OPTIONS" "OPTIONS" …`` writes them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workloads.options import parse_run_options
from workloads.support import Framework, supported

# A network without dropout or batch statistics: how the batch is shared changes nothing.
RUN = "--network cifar10_quick --width-divisor 4 --batch 4 --steps 3 --warm-up 0"


def write(output: Path, name: str, options: Sequence[str]) -> None:
    """Write the losses of three steps of a framework with each of ``options``: lists as JSON."""
    # XLA's older way compiles in half the time, and in one piece, for one thread, in less.
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"
    framework = Framework(name)
    train = importlib.import_module(f"workloads.{framework.lower()}.train")
    found = []
    for words in options:
        step = train.prepare(
            supported(parse_run_options([*RUN.split(), *words.split()]), framework)
        )
        found.append([float(step()) for _ in range(3)])
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
