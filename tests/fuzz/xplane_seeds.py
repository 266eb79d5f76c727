"""XPlane seeds, written field by field with the tests' own writers."""

from __future__ import annotations

from tests.readers.xplane.hlo_writing import Made, array, computation, metadata_plane, module, ran
from tests.readers.xplane.writing import PlaneWriter, message


def training() -> bytes:
    """Return a GPU's kernels and copies in three steps, with the host's operators and launches."""
    gpu = PlaneWriter("/device:GPU:0")
    host = PlaneWriter("/host:CPU")
    kernels, copies, launches, operators, steps = [], [], [], [], []
    for step in range(3):
        at = step * 60_000_000
        steps.append(host.event("train", at, 58_000_000, step_num=step))
        for i, (operator, kernel) in enumerate(
            (
                ("model/conv2d/Conv2D:Conv2D", "volta_scudnn_128x64_relu_interior_nn_v1"),
                ("model/re_lu/Relu:Relu", "void tensorflow::functor::relu_kernel<float>(int)"),
                ("model/dense/MatMul:MatMul", "volta_sgemm_128x64_nn"),
                ("gradient_tape/model/dense/MatMul:MatMul", "volta_sgemm_128x64_nt"),
                ("SGD/SGD/update/ResourceApplyGradientDescent", "void sgd_kernel<float>(int)"),
            )
        ):
            number = step * 10 + i + 1
            begin = at + 8_000_000 * (i + 1)
            operators.append(host.event(operator, begin, 3_000_000))
            launches.append(
                host.event("cuLaunchKernel", begin + 500_000, 400_000, correlation_id=number)
            )
            kernels.append(
                gpu.event(
                    kernel, begin + 1_500_000, 4_000_000, correlation_id=number,
                    tf_op=operator, kernel_details="regs:32 static_shared:0 dynamic_shared:0 "
                    "grid:4,1,1 block:128,1,1 occ_pct:50",
                )
            )  # fmt: skip
        copies.append(
            gpu.event(
                "MemcpyH2D", at + 2_000_000, 1_000_000, correlation_id=step * 10 + 9,
                memcpy_details="kind_src:pageable kind_dst:device size:4096 dest:0 async:1",
            )
        )  # fmt: skip
        name, number = "cuMemcpyHtoDAsync_v2", step * 10 + 9
        launches.append(host.event(name, at + 1_000_000, 500_000, correlation_id=number))
    gpu.line("Stream #7(Kernel)", kernels, number_=7)
    gpu.line("Stream #8(MemcpyH2D)", copies, number_=8)
    host.line("python", steps, number_=1)
    host.line("tf_Compute", operators, number_=2)
    host.line("tf_launch", launches, number_=3)
    for name, value in (("compute_cap_major", 7), ("compute_cap_minor", 0), ("core_count", 80)):
        gpu.plane_stat(name, value)
    gpu.plane_stat("device_type_string", "Tesla V100-SXM2-16GB")
    return host.encode() + gpu.encode() + message(4, "worker-0")


def gpu_with_program() -> bytes:
    """Return a compiled program's kernels with its HLO."""
    body = computation(
        1,
        3,
        Made(1, "p0", "parameter", array(8, 3, 32, 32)),
        Made(2, "p1", "parameter", array(16, 3, 3, 3)),
        Made(3, "conv.1", "convolution", array(8, 16, 30, 30), "jit(f)/model/conv1/conv", (1, 2)),
    )
    entry = computation(
        2,
        6,
        Made(4, "a", "parameter", array(8, 64)),
        Made(5, "b", "parameter", array(64, 32)),
        Made(6, "dot.1", "dot", array(8, 32), "jit(f)/model/dense1/dot_general", (4, 5)),
        Made(7, "fusion.1", "fusion", array(8, 16, 30, 30), "jit(f)/model/conv1/conv", (), (1,)),
    )
    plane = ran(*(("jit_f", 4, name) for name in ("dot.1", "fusion.1") * 12))
    return metadata_plane(jit_f_4=module(2, body, entry)) + plane.encode()
