"""Generated code of Inductor: the calls and what each reads, of whatever text a file has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inductor import Line, convolution, gradient, on_cpu, on_gpu
from traceana.enrich.layers import generated_code
from traceana.enrich.layers.generated_code import GraphCall, graph_of, graphs_in

EMPTY = "empty_strided_cpu((2, 4), (4, 1), torch.float32)"
RELU = "cpp_fused_relu_0"


def reads(*lines: Line) -> list[tuple[int, ...]]:
    """Return what each call reads."""
    graph = graph_of(on_cpu(lines).encode())
    assert graph is not None
    return [call.reads for call in graph]


@pytest.mark.parametrize(
    ("write", "name"), [(on_cpu, "cpp_fused_add_relu_0"), (on_gpu, "triton_poi_fused_add_relu_0")]
)
def test_calls_are_in_order_with_what_they_read(write, name: str) -> None:  # type: ignore[no-untyped-def]
    text = write(
        [
            "primals_1, primals_2 = args",
            "args.clear()",
            "assert_size_stride(primals_1, (4, 4, 3, 3), (36, 9, 3, 1), 'input')",
            "# Topologically Sorted Source Nodes: [conv], Original ATen: [aten.convolution]",
            convolution("buf0", "primals_2"),
            convolution("buf1", "primals_2"),
            f"buf2 = {EMPTY}",
            (name, ["buf0", "buf1", "primals_1"], ["buf2"]),
            "del buf0",
            "buf3 = torch.ops.aten.convolution_backward.default(buf2, primals_2, [0], 1)",
            "buf4 = buf3[0]",
            f"buf5 = {EMPTY}",
            "extern_kernels.mm(reinterpret_tensor(buf4, (2, 4), (4, 1), 0), primals_1, out=buf5)",
            "buf6 = extern_kernels.bias_addmm(primals_1, buf5, primals_2, alpha=1, beta=1)",
        ]
    )
    weight, result = (4, 4, 3, 3), (2, 4)
    gradient = (result, None, None, None)
    assert graph_of(text.encode()) == (
        GraphCall("aten::convolution", (), generated=False, shapes=(None, weight)),
        GraphCall("aten::convolution", (), generated=False, shapes=(None, weight)),
        GraphCall(name, (0, 1), generated=True),
        GraphCall("aten::convolution_backward", (2,), generated=False, shapes=gradient),
        GraphCall("aten::mm", (3,), generated=False, shapes=(result, weight)),
        GraphCall("aten::addmm", (4,), generated=False, shapes=(weight, result, None)),
    )


def test_partitions_that_are_cuda_graphs_are_parts_of_the_graph() -> None:
    """As PyTorch 2.11 writes it with ``mode="reduce-overhead"``."""
    whole = on_cpu(
        [
            "primals_1, primals_2 = args",
            "partition0_args = [primals_2, primals_1]",
            "del primals_2",
            "(buf1,) = self.partitions[0](partition0_args)",
            "del partition0_args",
            (RELU, ["buf1"], ["buf2"]),
        ]
    )
    partition = (
        "def partition_0(args):\n"
        "    primals_2, primals_1 = args\n"
        "    args.clear()\n"
        f"    {convolution('buf0', 'primals_2')}\n"
        "    buf1 = buf0; del buf0  # reuse\n"
        "    return (buf1, )\n"
    )
    graph = graph_of(f"{partition}{whole}".encode())
    assert graph is not None
    assert [(call.name, call.reads) for call in graph] == [("aten::convolution", ()), (RELU, (0,))]
    assert graph_of(whole.encode()) is None


def test_memory_that_is_used_again_is_another_buffer() -> None:
    first, second, third = "cpp_fused_relu_0", "cpp_fused_add_1", "cpp_fused_mul_2"
    found = reads(
        convolution("buf0", "x"),
        f"buf1 = {EMPTY}",
        (first, ["buf0"], ["buf1"]),
        "buf2 = buf0; del buf0  # reuse",
        (second, ["buf1"], ["buf2"]),
        (third, ["buf2"], ["buf1"]),
    )
    assert found == [(), (0,), (1,), (2,)]


def test_memory_that_is_used_again_in_parts_has_nothing_of_before() -> None:
    found = reads(
        convolution("buf0", "x"),
        "buf3 = reinterpret_tensor(buf0, (2, 8), (8, 1), 0); del buf0  # reuse",
        "buf1 = reinterpret_tensor(buf3, (2, 4), (8, 1), 0)  # alias",
        "buf2 = reinterpret_tensor(buf3, (2, 4), (8, 1), 4)  # alias",
        ("cpp_fused_cat_0", ["x"], ["buf1"]),
        ("cpp_fused_cat_1", ["x"], ["buf2"]),
        convolution("buf4", "buf3"),
    )
    # Both wrote a part of what the second convolution reads.
    assert found == [(), (), (), (1, 2)]


def test_a_kernel_in_place_reads_and_writes() -> None:
    text = on_cpu(
        [
            convolution("buf0", "x"),
            "buf1 = buf0; del buf0  # reuse",
            (RELU, ["buf1"], []),
            convolution("buf2", "buf1"),
        ]
    ).replace("const float* in_ptr0", "float* in_out_ptr0")
    graph = graph_of(text.encode())
    assert graph is not None
    assert [call.reads for call in graph] == [(), (0,), (1,)]


def test_a_buffer_that_refers_to_itself_ends() -> None:
    assert reads("buf0 = buf0", "buf1 = buf2; del buf2", "buf2 = buf1; del buf1",
                 convolution("buf2", "buf2")) == [()]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os\nos.remove('x')\n",
        "def call(args):\n    pass\n",
        "def call(args):\n    buf0 = unknown(args)\n    buf1 = extern_kernels.mm(buf0, buf0)\n",
        "def call(args):\n    while True:\n        extern_kernels.mm(args, args)\n",
        "def call(args):\n    for x in args:\n        extern_kernels.mm(x, x)\n",
        "def call(args):\n    x = alloc_from_pool(pool0, 0, 1)\n    extern_kernels.mm(x, x)\n",
        "def call(args):\n    buf0 = extern_kernels.mm(" + "(" * 5_000 + "\n",
        "def call(args):\n    x = " + "-" * 100_000 + "1\n    extern_kernels.mm(x, x)\n",
        "def call(args):\n    x = " + "a." * 50_000 + "b\n    extern_kernels.mm(x, x)\n",
        "def call(args):\n    \0\n",
        on_cpu([convolution("buf0", "x")])[:-30] + "(",
    ],
    ids=range(12),
)
def test_other_texts_are_no_graphs(text: str) -> None:
    assert graph_of(text.encode()) is None


def test_what_python_warns_of_is_not_printed(recwarn: pytest.WarningsRecorder) -> None:
    graph = on_cpu([convolution("buf0", "x")])
    for odd in ("x = 1if y else 2", r"x = '\d'", "assert (1, 'x')"):
        graph_of(f"{graph}\n{odd}\n".encode())
    assert not recwarn.list


def test_binary_content_is_no_graph() -> None:
    assert graph_of(b"def call(args):\n\xff\xfe\x00\x80") is None


@given(st.data())
def test_a_damaged_file_is_a_graph_or_none(data: st.DataObject) -> None:
    whole = on_cpu([convolution("buf0", "x"), (RELU, ["buf0"], ["buf0"]), gradient("buf1", "buf0")])
    content = bytearray(whole.encode())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
        if not content:
            return
    graph = graph_of(bytes(content))
    for place, call in enumerate(graph or ()):
        assert all(0 <= read < place for read in call.reads)


def test_a_folder_has_each_graph_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_cpu([convolution("buf0", "x")])
    for name in ("ab/cabc.py", "cd/ccde.py", "cd/kernel.py", "cd/large.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "cd" / "kernel.py").write_text("import triton")
    (tmp_path / "cd" / "folder.py").mkdir()
    (tmp_path / "cd" / "gone.py").symlink_to(tmp_path / "nothing")
    monkeypatch.setattr(generated_code, "LARGEST_FILE", len(text))
    (tmp_path / "cd" / "large.py").write_text(on_cpu([convolution("buf0", "x")] * 2))
    assert graphs_in(tmp_path) == {(GraphCall("aten::convolution", (), generated=False),)}
