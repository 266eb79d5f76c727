"""Generated code as Inductor writes it, made of a list of calls."""

from __future__ import annotations

from collections.abc import Sequence

Kernel = tuple[str, Sequence[str], Sequence[str]]
"""Name, the buffers that it reads, those that it writes."""
Line = str | Kernel
"""A statement as it is, or the launch of a generated kernel."""


def on_cpu(lines: Sequence[Line]) -> str:
    """Return the code of a graph for a CPU, as PyTorch 2.8 and newer write it."""
    kernels, body = [], []
    for line in lines:
        if isinstance(line, str):
            body.append(line)
            continue
        name, reads, writes = line
        parameters = [f"const float* in_ptr{n}" for n in range(len(reads))]
        parameters += [f"float* out_ptr{n}" for n in range(len(writes))]
        kernels.append(
            f"{name} = async_compile.cpp_pybinding(['const float*'], r'''\n"
            f'#include <prefix.h>\nextern "C"  void  kernel({", ".join(parameters)})\n'
            "{\n    call(in_ptr0);\n}\n''')\n"
        )
        body.append(f"{name}({', '.join([*reads, *writes])})")
    return _module(kernels, "class Runner:\n    def call(self, args):\n", body, 8)


def on_gpu(lines: Sequence[Line]) -> str:
    """Return the code of a graph for a GPU, as PyTorch before 2.8 writes it."""
    kernels, body = [], []
    for line in lines:
        if isinstance(line, str):
            body.append(line)
            continue
        name, reads, writes = line
        parameters = [f"in_ptr{n}" for n in range(len(reads))]
        parameters += [f"out_ptr{n}" for n in range(len(writes))]
        kernels.append(
            f"{name} = async_compile.triton('{name}', '''\nimport triton\n@triton.jit\n"
            f"def {name}({', '.join(parameters)}, xnumel, XBLOCK : tl.constexpr):\n    pass\n"
            "''', device_str='cuda')\n"
        )
        body.append(f"{name}.run({', '.join([*reads, *writes])}, 4096, stream=stream0)")
    head = (
        "def call(args):\n    with torch.cuda._DeviceGuard(0):\n        torch.cuda.set_device(0)\n"
    )
    return _module(kernels, head, ["stream0 = get_raw_stream(0)", *body], 8)


def _module(kernels: Sequence[str], head: str, body: Sequence[str], indent: int) -> str:
    lines = "".join(f"{' ' * indent}{line}\n" for line in body)
    start = (
        "from torch._inductor.async_compile import AsyncCompile\nasync_compile = AsyncCompile()\n"
    )
    return start + "".join(kernels) + head + lines + f"{' ' * indent}return (buf0, )\n"


def convolution(result: str, image: str, weight: str = "primals_1") -> str:
    """Return the call of a convolution."""
    return f"{result} = extern_kernels.convolution({image}, {weight}, stride=(1, 1), bias=None)"


def gradient(result: str, of_result: str) -> str:
    """Return the call of a convolution's gradient; the first result is that of its image."""
    call = "torch.ops.aten.convolution_backward.default"
    return f"{result} = {call}({of_result}, relu_1, primals_1, [0], (1, 1), 1, [True, True, False])"
