"""The traces that others recorded, with the exact counts that a reader must reproduce.

They lie beside the repository, not in it; tests on them skip where the folder is missing.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
GPU = TRACES.parent / "gpu"
PRINTED = TRACES.parent / "printed"
"""What profilers printed, as others published it."""
NEEDS_PRINTED = pytest.mark.skipif(not PRINTED.exists(), reason="no printed outputs of others here")
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@dataclass(frozen=True)
class Expected:
    """One row of the manifest: counts of kernels, copies by direction and sets."""

    file: str
    format: str
    kernels: int
    distinct_names: int
    kernel_ns: int
    memcpy: dict[str, int]
    memset: int

    @property
    def path(self) -> Path:
        """The path of the trace."""
        return TRACES / self.file


def expected(*formats: str) -> list[Expected]:
    """Return the rows of the given formats; none where the folder is missing."""
    manifest = TRACES / "MANIFEST.tsv"
    if not manifest.is_file():
        return []
    with manifest.open(newline="") as file:
        return [
            Expected(
                row["file"],
                row["format"],
                int(row["kernels"]),
                int(row["distinct_names"]),
                int(row["kernel_ns"]),
                {
                    kind.replace("2", "to"): int(n)
                    for kind, n in (copies.split(":") for copies in row["memcpy"].split())
                },
                int(row["memset"]),
            )
            for row in csv.DictReader(file, delimiter="\t")
            if row["format"] in formats
        ]


def each(*formats: str) -> pytest.MarkDecorator:
    """Parametrize a test over the traces of ``formats`` as ``want``; skip it without them."""
    rows = expected(*formats)
    if not rows:
        return pytest.mark.parametrize(
            "want", [pytest.param(None, marks=pytest.mark.skip(reason="no shared traces"))]
        )
    return pytest.mark.parametrize("want", chosen(rows))


def printed(*kinds: str) -> list[dict[str, str]]:
    """Return the rows of the manifest of printed outputs, of ``kinds``; none without the folder."""
    if not PRINTED.exists():
        return []
    with (PRINTED / "MANIFEST.tsv").open(newline="") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["kind"] in kinds]


CHOSEN = frozenset(
    (
        *("alexnet_forward_a100.json.gz", "diff_test_v100.json.gz", "dlrm_8xv100"),
        *("eager_b200.json.gz", "resnet50_train_v100_oldest_schema.json.gz"),
        *("alexnet_default.json.gz", "alexnet-cpu-mxnet.json.gz", "alexnet-cpu-cntk.json.gz"),
        *("saxpy_mpi_a100.schema2.9.sqlite", "nccl_8xv100.nvvp"),
        *("alexnet-gpu-jax-fp32.xplane.pb.gz", "jax_conv_legacy_mi300.xplane.pb"),
        *("resnet50-cpu-jax.xplane.pb.gz", "alexnet-cpu-keras.trace.json.gz"),
    )
)
"""The traces of the tests of every change, each taken for the lines that those before it lack: on
them the commands execute 97.7 % of the lines that they execute on all traces at hand."""


def traces_at_hand() -> list[Path]:
    """Return the traces of others, where they are, and the recorded ones of the repository.

    Of a run with several ranks these are the folder and rank 0: the folder holds the other ranks.
    """
    return [
        *sorted(TRACES.glob("kineto/*.json.gz")),
        *sorted(TRACES.glob("kineto/*/rank0.json.gz")),
        *sorted(TRACES.glob("kineto/dlrm_8xv100")),
        *sorted(TRACES.glob("nsys/*.sqlite")),
        *sorted(TRACES.glob("nvprof/*")),
        *sorted(TRACES.glob("xplane/*.pb")),
        *sorted(f for f in GPU.rglob("*.json.gz") if ".layers." not in f.name),
        *sorted(FIXTURES.rglob("*.sqlite")),
        *sorted(f for f in FIXTURES.rglob("*.json.gz") if ".layers." not in f.name),
        *sorted(FIXTURES.rglob("*.xplane.pb*")),
    ]


def chosen(traces: Sequence[Path | Expected]) -> list[Any]:
    """Return a parameter per trace; those that are not chosen are of ``make test-all``."""
    found = []
    for one in traces:
        path, name = (one, one.name) if isinstance(one, Path) else (one.path, one.file)
        marks = () if path.name in CHOSEN else pytest.mark.exhaustive
        found.append(pytest.param(one, id=name, marks=marks))
    return found


def small_traces_at_hand(of_each: slice = slice(2)) -> list[Path]:
    """Return the two smallest traces of each folder, or ``of_each`` of all by their size.

    They are for tests that take long on large ones.
    """
    folders: dict[Path, list[Path]] = {}
    for file in sorted(traces_at_hand(), key=lambda file: file.stat().st_size):
        folders.setdefault(file.parent, []).append(file)
    return sorted(file for files in folders.values() for file in files[of_each])
