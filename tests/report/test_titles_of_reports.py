"""The title of a report: no network named after an operator, a GPU without a name."""

from __future__ import annotations

from pathlib import Path

from tests.readers.kineto import writing
from tests.support.command_line import Run

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)"
V100 = {"id": 0, "computeMajor": 7, "computeMinor": 0, "numSms": 80, "totalGlobalMem": 16914055168}


def test_an_operator_is_no_network_and_a_gpu_without_a_name_has_its_facts(
    tmp_path: Path, run: Run
) -> None:
    events = []
    for number in range(1, 6):
        start = 10_000 * number
        events += [
            writing.annotation(f"ProfilerStep#{number}", start - 10, 300),
            writing.op("aten::zeros", start, 30),
            writing.call("cudaLaunchKernel", start + 5, 5, number),
            writing.kernel(FILL, start + 100, 50, correlation=number),
        ]
    path = writing.write(tmp_path / "a.json", events, deviceProperties=[V100])
    title = run("report", path).stdout.splitlines()[0]
    assert title.split("  ")[-1] == "PyTorch · CC 7.0, 80 SMs, 16.91 GB · Kineto"
