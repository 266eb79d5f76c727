"""Advice fits the program: its framework, its pass, the vendor of its devices."""

from __future__ import annotations

import pytest

from tests.advise.building import Run, run_of
from tests.support.traces import TraceBuilder
from traceana.advise import advise
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
    adapted = found.adapted(program(trace))
    fields = adapted.change.__struct_fields__
    return {one: getattr(adapted.change, one) for one in fields} | {"caveat": adapted.caveat}


def test_a_program_of_physics_gets_no_advice_on_tensors() -> None:
    found = texts(recorded().build(), "host_synchronization")
    assert found["pytorch"] == found["tensorflow"] == found["jax"] == ""
    assert "cudaStreamSynchronize" in found["native"]


@pytest.mark.parametrize(
    ("kernel", "others"), [("at::native::vectorized_kernel", False), ("cudnn::winograd", True)]
)
def test_kernels_of_a_framework_are_of_a_network_whatever_recorded_them(
    kernel: str, *, others: bool
) -> None:
    found = texts(recorded(kernel=kernel).build(), "host_synchronization")
    assert ".item()" in found["pytorch"]
    assert found["native"] == ""
    assert bool(found["tensorflow"]) is bool(found["jax"]) is others


@pytest.mark.parametrize(
    ("framework", "own"), [("PyTorch", "pytorch"), ("TensorFlow", "tensorflow"), ("JAX", "jax")]
)
def test_a_framework_gets_no_advice_on_others(framework: str, own: str) -> None:
    for rule in RULES:
        found = texts(recorded(framework=framework).build(), rule.id)
        assert found[own]
        assert not any(found[one] for one in ("pytorch", "tensorflow", "jax") if one != own)


@pytest.mark.parametrize(
    ("iterator", "advised"),
    [("_MultiProcessing", "has workers: more of them"), ("_SingleProcess", "num_workers=N")],
)
def test_a_loader_with_workers_is_not_told_to_have_some(iterator: str, advised: str) -> None:
    run = Run()
    for number in range(4):
        run.next_step()
        text = f"enumerate(DataLoader)#{iterator}DataLoaderIter.__next__"
        thread = {"process": 1, "thread": 1}
        run.row("ranges", text=text, kind="annotation", start=run.at, duration=1_900_000, **thread)
        call = run.row(
            "calls", name="cudaLaunchKernel", start=run.at + 1_950_000, duration=5,
            correlation=number, **thread,
        )  # fmt: skip
        run.kernel_in_step("plain", run.at + 1_950_000, 50_000, call=call)
    (finding,) = (one for one in advise(run.build()).findings if one.rule.id == "data_loading")
    assert advised in finding.rule.change.pytorch
    assert ("num_workers" in finding.rule.change.pytorch) is (iterator == "_SingleProcess")


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
    code = texts(recorded("AMD").build(), "code_loading")["native"]
    assert "HIP_ENABLE_DEFERRED_LOADING=0" in code
    assert "hipcc --offload-arch" in code
    assert not any(word in code for word in ("CUDA", "nvcc", "PTX"))


@pytest.mark.parametrize(
    ("kernel", "operator", "noted"),
    [
        ("triton_poi_fused_relu_0", "aten::relu", True),
        ("vectorized_kernel", "Torch-Compiled Region: 0/1", True),
        ("my_triton_kernel", "aten::relu", False),
    ],
)
def test_a_program_that_is_compiled_in_part_is_told_how_to_find_the_rest(
    kernel: str, operator: str, noted: bool
) -> None:
    def put(run: Run) -> None:
        run.convolution("implicit_gemm")
        run.name("relu", category="activation", function="relu")
        run.put("relu", 500_000, direction="forward", op=run.op(operator, "[[1024]]"))
        run.name(kernel, category="elementwise")
        run.put(kernel, 1000)

    found = advise(run_of(put))
    assert any("torch.compile" in one.rule.change.pytorch for one in found.findings)
    assert any("graph_breaks" in note for note in found.notes) == noted
