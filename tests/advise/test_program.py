"""Advice fits the program: its framework, its pass, the vendor of its devices."""

from __future__ import annotations

import pytest

from tests.support.traces import TraceBuilder
from traceana.advise.figures import program
from traceana.advise.rule import RULES
from traceana.trace import Trace


def recorded(vendor: str = "NVIDIA", kernel: str = "advec_cell", **meta: str) -> TraceBuilder:
    b = TraceBuilder(**meta)
    b.row("devices", device=0, name="GPU", vendor=vendor)
    b.kernel(kernel, 0, 100)
    return b


def texts(trace: Trace, rule: str) -> dict[str, str]:
    """Return the texts of ``rule`` for ``trace``."""
    (found,) = (one for one in RULES if one.id == rule)
    adapted = program(trace).adapted(found)
    fields = adapted.change.__struct_fields__
    return {one: getattr(adapted.change, one) for one in fields} | {"caveat": adapted.caveat}


def test_a_program_of_physics_gets_no_advice_on_tensors() -> None:
    found = texts(recorded().build(), "host_synchronization")
    assert found["pytorch"] == found["tensorflow"] == found["jax"] == ""
    assert "cudaStreamSynchronize" in found["native"]


@pytest.mark.parametrize("kernel", ["at::native::vectorized_kernel", "cudnn::winograd"])
def test_kernels_of_a_framework_are_of_a_network_whatever_recorded_them(kernel: str) -> None:
    found = texts(recorded(kernel=kernel).build(), "host_synchronization")
    assert ".item()" in found["pytorch"]
    assert found["native"] == ""


def test_inference_is_not_told_of_gradients() -> None:
    assert (
        "tensor parallelism"
        in texts(recorded(framework="PyTorch").build(), "exposed_communication")["pytorch"]
    )
    training = recorded(framework="PyTorch")
    training.kernel("gemm", 200, 100, direction="backward")
    found = texts(training.build(), "exposed_communication")
    assert "DistributedDataParallel" in found["pytorch"]


def test_devices_of_amd_have_amds_words() -> None:
    found = texts(recorded("AMD").build(), "host_synchronization")
    assert found["native"].startswith("hipStreamSynchronize")
    cores = texts(recorded("AMD", framework="PyTorch").build(), "layout_changes")["pytorch"]
    assert "matrix cores" in cores
    assert "tensor cores" not in cores
    kept = texts(recorded("AMD", framework="PyTorch").build(), "fast_convolution")["pytorch"]
    assert kept.startswith("torch.backends.cudnn.benchmark"), "PyTorch's name is the same on AMD"
