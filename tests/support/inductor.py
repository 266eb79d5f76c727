"""Generated code as Inductor writes it, made of a list of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Kernel = tuple[str, Sequence[str], Sequence[str]]
"""Name, the buffers that it reads, those that it writes."""
Line = str | Kernel
"""A statement as it is, or the launch of a generated kernel."""


def on_cpu(lines: Sequence[Line]) -> str:
    """Return the code of a graph for a CPU, as PyTorch 2.8 and newer write it."""

    def kernel(name: str, reads: int, writes: int) -> str:
        parameters = [f"const float* in_ptr{n}" for n in range(reads)]
        parameters += [f"float* out_ptr{n}" for n in range(writes)]
        return (
            f"{name} = async_compile.cpp_pybinding(['const float*'], r'''\n"
            f'#include <prefix.h>\nextern "C"  void  kernel({", ".join(parameters)})\n'
            "{\n    call(in_ptr0);\n}\n''')\n"
        )

    head = "class Runner:\n    def call(self, args):\n"
    return _module(lines, kernel, lambda name, buffers: f"{name}({buffers})", head)


def on_gpu(lines: Sequence[Line]) -> str:
    """Return the code of a graph for a GPU, as PyTorch before 2.8 writes it."""

    def kernel(name: str, reads: int, writes: int) -> str:
        parameters = [f"in_ptr{n}" for n in range(reads)]
        parameters += [f"out_ptr{n}" for n in range(writes)]
        return (
            f"{name} = async_compile.triton('{name}', '''\nimport triton\n@triton.jit\n"
            f"def {name}({', '.join(parameters)}, xnumel, XBLOCK : tl.constexpr):\n    pass\n"
            "''', device_str='cuda')\n"
        )

    def launch(name: str, buffers: str) -> str:
        return f"{name}.run({buffers}, 4096, stream=stream0)"

    head = (
        "def call(args):\n    with torch.cuda._DeviceGuard(0):\n        torch.cuda.set_device(0)\n"
    )
    return _module(["stream0 = get_raw_stream(0)", *lines], kernel, launch, head)


def _module(
    lines: Sequence[Line],
    kernel: Callable[[str, int, int], str],
    launch: Callable[[str, str], str],
    head: str,
) -> str:
    """Return a module with the kernels of ``lines`` and the function ``call``.

    ``kernel`` returns the definition of a kernel with so many buffers that it reads and writes,
    ``launch`` its call with all of them.
    """
    kernels, body = [], []
    for line in lines:
        if isinstance(line, str):
            body.append(line)
            continue
        name, reads, writes = line
        kernels.append(kernel(name, len(reads), len(writes)))
        body.append(launch(name, ", ".join([*reads, *writes])))
    start = (
        "from torch._inductor.async_compile import AsyncCompile\nasync_compile = AsyncCompile()\n"
    )
    statements = "".join(f"        {line}\n" for line in [*body, "return (buf0, )"])
    return start + "".join(kernels) + head + statements


def convolution(result: str, image: str, weight: str = "primals_1") -> str:
    """Return the call of a convolution."""
    return f"{result} = extern_kernels.convolution({image}, {weight}, stride=(1, 1), bias=None)"


def gradient(result: str, of_result: str) -> str:
    """Return the call of a convolution's gradient; the first result is that of its image."""
    call = "torch.ops.aten.convolution_backward.default"
    return f"{result} = {call}({of_result}, relu_1, primals_1, [0], (1, 1), 1, [True, True, False])"
