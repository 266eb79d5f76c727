"""Record on a machine with a GPU what no recording has yet, in independent parts.

sh workloads/record_gpu.sh                            eight minutes, into recordings/
sh workloads/record_gpu.sh --parts jax,counters       these parts
sh workloads/record_gpu.sh --list                     the parts, with their time limits
sh workloads/record_gpu.sh --device cpu               try it without a GPU: tiny runs

A part that fails or reaches its time limit keeps its files and does not stop the others. The
summary at the end, also in summary.json, lists what was recorded, skipped or failed; PART.log is
the output of a part. nsys, ncu, JAX, TensorFlow and Lightning are used where installed. ncu
needs permission to read the GPU's counters: root, or NVreg_RestrictProfilingToAdminUsers=0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[1]
_GRACE_S: Final = 5
"""The end of a part's time, in which it writes its files."""
_CPU_LIMIT_S: Final = 600
"""The limit of a part on a CPU, which may be slow and shared."""
_REMARK: Final = re.compile(r"(\S+): (skipped, |FAILED: |nsys lacks )(.*)")


@dataclass(frozen=True)
class Part:
    """Commands for a GPU and for the CPU, the words behind ``python -m``.

    ``{output}`` is the folder of the recordings. No part needs another.
    """

    name: str
    limit_s: int
    about: str
    gpu: tuple[str, ...]
    cpu: tuple[str, ...]


def _programs(device: str, *names: str, seconds: int | None = None) -> tuple[str, ...]:
    limit = () if seconds is None else ("--seconds", str(seconds))
    only = (word for name in names for word in ("--only", name))
    command = ("workloads.pytorch.programs", "--device", device, "--out", "{output}/programs")
    return (*command, *limit, *only)


def _recordings(plan: str, *names: str) -> tuple[str, ...]:
    only = (word for name in names for word in ("--only", name.replace("-gpu-", f"-{plan}-")))
    return ("workloads.record_fixtures", "--plan", plan, "--output", "{output}", *only)


def _recorded(name: str, limit_s: int, about: str, *names: str) -> Part:
    return Part(name, limit_s, about, _recordings("gpu", *names), _recordings("smoke", *names))


PARTS: Final = (
    Part("pairs", 80,
         "programs that differ in one thing, with times without a profiler; memory events",
         _programs("cuda", seconds=65),
         _programs("cpu", "alexnet_b128", "resnet18_b8_fused", "alexnet_b64_memory")),
    Part("compiled", 95,
         "training by torch.compile, reduce-overhead and max-autotune, with the generated code",
         _programs("cuda", "resnet18_b32_reduce-overhead", "alexnet_b128_max-autotune",
                   "resnet18_b32_default"),
         _programs("cpu", "alexnet_b128_max-autotune")),
    _recorded("jax", 95, "JAX without command buffers: AlexNet and ResNet-50",
              "alexnet-gpu-jax", "resnet50-gpu-jax"),
    Part("counters", 65,
         "ncu: counters of each algorithm of one convolution layer (CPU: oneDNN's, timed)",
         _recordings("gpu", "alexnet-gpu-counters"),
         ("workloads.algorithms", "--library=onednn", "--layer=conv2", "--batch=1",
          "--image-size=67", "--width-divisor=8", "--repetitions=3", "--threads=1",
          "--limit=0.01", "--out={output}/alexnet-smoke-onednn.json")),
    _recorded("nsys", 40, "nsys: AlexNet, and a step as a CUDA graph, node by node",
              "alexnet-gpu-nsys", "resnet18-gpu-nsys-graph"),
    _recorded("keras", 55, "TensorFlow: AlexNet and ResNet-50",
              "alexnet-gpu-keras", "resnet50-gpu-keras"),
    _recorded("ranks", 20, "a process group of two GPUs", "alexnet-gpu-ranks"),
    Part("lightning", 20, "a network trained by Lightning",
         _programs("cuda", "lightning"), _programs("cpu", "lightning")),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The status of a part; ``remarks`` list skipped and failed items, and commands to run."""

    part: str
    status: Literal["ok", "skipped", "failed", "stopped"]
    seconds: float
    files: int
    bytes: int
    remarks: tuple[str, ...]

    def __str__(self) -> str:
        size = f"{self.files} files, {self.bytes / 1e6:.1f} MB, " if self.files else ""
        rest = "".join(f"\n{'':22}{remark}" for remark in self.remarks)
        return f"{self.part:10}  {self.status:8}  {size}{self.seconds:.0f} s{rest}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 when a part failed or was stopped."""
    parser = argparse.ArgumentParser("record_gpu.sh", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--output", type=Path, metavar="FOLDER", help="(recordings; with --device cpu a new one)")
    add("--parts", type=_parts, default=PARTS, metavar="NAME,…", help="these parts (all)")
    add("--list", action="store_true", help="list the parts, and record nothing")
    add("--open", action="store_true", help="without namespaces: recordings name the host")
    arguments = parser.parse_args(argv)
    parts: tuple[Part, ...] = arguments.parts
    on_gpu = arguments.device == "cuda"
    if arguments.list:
        for part in parts:
            print(f"{part.name:10}  {part.limit_s:3} s  {part.about}")
        return 0
    if on_gpu and subprocess.run([sys.executable, "-c", _HAS_GPU], check=False).returncode:
        parser.error("PyTorch finds no GPU here: try --device cpu")
    output: Path = arguments.output or (Path("recordings") if on_gpu else Path(tempfile.mkdtemp()))
    output.mkdir(parents=True, exist_ok=True)
    output = output.resolve()
    outcomes = []
    for part in parts:
        words = [word.format(output=output) for word in (part.gpu if on_gpu else part.cpu)]
        if arguments.open and "workloads.record_fixtures" in words:
            words.append("--open")
        print(f"{part.name}: {part.about}", flush=True)
        limit_s = part.limit_s if on_gpu else _CPU_LIMIT_S
        outcomes.append(_run(part.name, words, limit_s, output))
        summary = {"device": arguments.device, "parts": [asdict(each) for each in outcomes]}
        (output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    print(f"\nin {output}:", *outcomes, sep="\n")
    return int(any(each.status in ("failed", "stopped") for each in outcomes))


_HAS_GPU: Final = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def _parts(text: str) -> tuple[Part, ...]:
    known = {part.name: part for part in PARTS}
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no part {name!r}: choose from {', '.join(known)}")
    return tuple(known[name] for name in names)


def _run(name: str, words: Sequence[str], limit_s: int, output: Path) -> Outcome:
    """Run a part within its limit, in a session of its own that is ended as a whole."""
    before = _files(output)
    log = output / f"{name}.log"
    start = time.monotonic()
    with (
        log.open("wb") as printed,
        subprocess.Popen(
            [sys.executable, "-u", "-m", *words],
            cwd=ROOT,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(limit_s - _GRACE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    spent = time.monotonic() - start
    after = _files(output)
    new = [path for path, state in after.items() if before.get(path) != state and path != log]
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    remarks = [f"{what}: {kind}{why}" for what, kind, why in _REMARK.findall("\n".join(lines))]
    status: Literal["ok", "skipped", "failed", "stopped"] = "ok" if new else "skipped"
    if code is None:
        status = "stopped"
        remarks.append(f"stopped at its limit of {limit_s} s")
    elif code:
        last = lines[-1] if lines else f"exit code {code}"
        status = "skipped" if "is not installed" in last else "failed"
        if not any("FAILED: " in remark for remark in remarks):
            remarks.append(last)
    sizes = sum(path.stat().st_size for path in new)
    return Outcome(name, status, round(spent, 1), len(new), sizes, tuple(remarks))


def _files(folder: Path) -> dict[Path, int]:
    """Return the files below ``folder`` and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    sys.exit(main())
