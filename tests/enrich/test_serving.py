"""Iterations of servers: what their texts say, and the steps and phases made of them."""

from __future__ import annotations

import pytest

from tests.enrich.test_attribution import annotate, launch, op
from tests.support.traces import TraceBuilder, with_methods
from traceana import Trace
from traceana.analyze.roofline import utilization
from traceana.analyze.serving import phases
from traceana.enrich import attribute
from traceana.enrich.serving import Iteration, iteration
from traceana.timeline.steps import measured_steps
from traceana.trace.merge import merge


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("execute_context_1(888)_generation_0(0)", Iteration("vLLM", "prefill", 1, 888)),
        # The sum of the squares is behind the tokens.
        ("execute_context_1(888_788544)_generation_0(0)", Iteration("vLLM", "prefill", 1, 888)),
        ("execute_context_2(96)_generation_3(3)", Iteration("vLLM", "mixed", 5, 99)),
        ("execute_context_0(0)_generation_8(8)", Iteration("vLLM", "decode", 8, 8)),
        # Two tokens of each are verified.
        ("execute_context_0(0)_generation_8(16)", Iteration("vLLM", "decode", 8, 16)),
        (
            "execute_7_context_3(sq128sk256sqsq1sqsk1)_generation_2(sq2sk300sqsq1sqsk1)",
            Iteration("vLLM", "mixed", 5, 130),
        ),
        ("execute_new_1_cached_3", Iteration("vLLM", "mixed", 4, None)),
        ("execute_new_0_cached_3", Iteration("vLLM", "decode", 3, 3)),
        ("step[EXTEND bs=2 toks=107]", Iteration("SGLang", "prefill", 2, 107)),
        ("step[DECODE bs=16]", Iteration("SGLang", "decode", 16, 16)),
        ("step[TARGET_VERIFY bs=4]", Iteration("SGLang", "target_verify", 4, None)),
        ("step[DRAFT_EXTEND_V2 bs=4]", Iteration("SGLang", "draft_extend_v2", 4, None)),
        ("step[IDLE bs=0]", Iteration("SGLang", "idle", 0, 0)),
        ("step[MIXED bs=5 c=2 g=3 later=7]", Iteration("SGLang", "mixed", 5, None)),
        # With the sums of a roofline: lengths, squares, products of lengths.
        (
            "step[EXTEND bs=2 toks=107 c_sqsq=10249 c_sqsk=10249 c_sk=107]",
            Iteration("SGLang", "prefill", 2, 107),
        ),
        (
            f"step[DECODE bs=16 g_sqsq=16 g_sqsk={10**14} g_sk=8000]",
            Iteration("SGLang", "decode", 16, 16),
        ),
        (
            "step[MIXED bs=5 c=2 g=3 c_sq=104 c_sk=104 c_sqsq=10016 c_sqsk=10016"
            " g_sq=3 g_sk=900 g_sqsq=3 g_sqsk=900]",
            Iteration("SGLang", "mixed", 5, 107),
        ),
        (
            "[Executor] _forward_step 12: 1 ctx reqs, 888 ctx tokens, 3 gen reqs",
            Iteration("TensorRT-LLM", "mixed", 4, 891, 12),
        ),
        (
            "_forward_step: 2 ctx reqs, 1 gen reqs",
            Iteration("TensorRT-LLM", "mixed", 3, None),
        ),
        (
            "[Executor] _forward_step: 2 ctx reqs, 0 gen reqs",
            Iteration("TensorRT-LLM", "prefill", 2, None),
        ),
        (
            "[Executor] _forward_step 3: 0 ctx reqs, 0 gen reqs",
            Iteration("TensorRT-LLM", "idle", 0, 0, 3),
        ),
        ("execute_model", None),
        (f"execute_context_{10**30}(1)_generation_0(0)", None),
        (f"[Executor] _forward_step {10**30}: 0 ctx reqs, 1 gen reqs", None),
        ("step 3", None),
        ("step[0]", None),
        ("step[DECODE bs=4 and more]", None),
        ("execute_context_1(888)_generation_0(0) and more", None),
    ],
)
def test_what_a_text_says(text: str, expected: Iteration | None) -> None:
    assert iteration(text) == expected


def served(texts: list[tuple[str, int]]) -> Trace:
    """Return iterations of these lengths, each with an operator and a kernel."""
    b, now = TraceBuilder(), 0
    for correlation, (text, long) in enumerate(texts):
        annotate(b, text, now, now + long)
        op(b, "aten::mm", now + 1, now + 9, input_shapes="[[8,16],[16,4]]",
           input_types='["float","float"]')  # fmt: skip
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=now + 2, duration=2,
              correlation=correlation)  # fmt: skip
        b.kernel("k", now + 5, long // 2, correlation=correlation, process=9)
        now += long + 100
    return with_methods(attribute(b.build()))


def test_iterations_are_steps_and_their_phases_add_up() -> None:
    decode, prefill = (
        "execute_context_0(0)_generation_4(4)",
        "execute_context_1(500)_generation_0(0)",
    )
    mixed = "execute_context_1(96)_generation_4(4)"
    trace = served([(prefill, 1_000), (mixed, 400), (decode, 100), (decode, 200), (decode, 300)])
    assert trace.tables.steps["source"].unique().to_list() == ["vLLM iteration"]
    assert trace.tables.activities["step"].to_list() == [0, 1, 2, 3, 4]
    # The first is long because it has 500 tokens.
    assert measured_steps(trace).numbers == (0, 1, 2, 3, 4)
    # A product of 8 x 16 and 16 x 4, once in each.
    counted = 2 * 8 * 16 * 4, 2 * 8 * 16 * 4 / (4 * (8 * 16 + 16 * 4 + 8 * 4))
    assert phases(trace).frame.rows() == [
        (
            "prefill",
            1,
            1.0,
            500.0,
            1_000,
            1_000,
            500,
            500 / 1_000 * 1e9,
            *counted,
            1_000 - 500,
            "host",
        ),
        (
            "decode",
            3,
            4.0,
            4.0,
            200,
            200,
            100,
            12 / 600 * 1e9,
            *counted,
            (50 + 100 + 150) // 3,
            "host",
        ),
        ("mixed", 1, 5.0, 100.0, 400, 400, 200, 100 / 400 * 1e9, *counted, 400 - 200, "host"),
    ]
    # Between two iterations 100 ns pass.
    frame = phases(trace).frame
    idle = sum(frame["idle_ns"] * frame["iterations"])
    assert idle == trace.idle().totals["time_ns"] - 4 * 100


GEMM = "nvjet_tst_64x64_64x16_2x1_v_bz_TNT"


def test_ranks_of_one_process_id_have_iterations_of_their_own() -> None:
    """The ranks of a job in containers have the same process id, and start together."""
    alone = served([("execute_context_0(0)_generation_4(4)", long) for long in (100, 200, 300)])
    both = with_methods(merge([alone, alone], [0, 1], alone.meta))
    (one,) = phases(alone).frame.rows(named=True)
    (two,) = phases(both).frame.rows(named=True)
    assert two == one | {"iterations": 2 * one["iterations"]}
    assert both.idle().totals["time_ns"] == 2 * alone.idle().totals["time_ns"]


def test_iterations_of_one_number_are_apart() -> None:
    """A rank that reads prompts beside one that generates, both from iteration 0 on."""
    prefill = served([("execute_context_1(8)_generation_0(0)", 100)])
    decode = served([(f"execute_context_0(0)_generation_{n}({n})", 100) for n in (4, 5)])
    both = merge([prefill, decode], [0, 1], prefill.meta)
    (product,) = phases(prefill).frame["flops"]
    assert phases(both).frame.select("phase", "iterations", "flops").rows() == [
        ("decode", 2, product),
        ("prefill", 1, product),
    ]


def ahead(spacing: int, kernel: int, count: int) -> Trace:
    """Return decode iterations whose ranges of 100 ns end before the kernel that each launches."""
    b, free = TraceBuilder(), 0
    b.row("devices", device=0, name="NVIDIA H100 80GB HBM3")
    b.name(GEMM, category="gemm", precision="bf16", tensor_core=True)
    for n in range(count):
        begin = spacing * n
        annotate(b, "execute_context_0(0)_generation_4(4)", begin, begin + 100)
        op(b, "aten::mm", begin + 1, begin + 9, input_shapes="[[1024,1024],[1024,1024]]",
           input_types='["c10::BFloat16","c10::BFloat16"]')  # fmt: skip
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=begin + 2, duration=2,
              correlation=n)  # fmt: skip
        free = max(free, begin + 5)
        b.kernel(GEMM, free, kernel, correlation=n, process=9)
        free += kernel
    return with_methods(attribute(b.build()))


@pytest.mark.parametrize(
    ("spacing", "kernel", "times"),
    [
        (500, 90, [100] * 4),  # The work ends within the range.
        (500, 300, [305] * 4),  # After it: to its end.
        (500, 600, [605, 600, 600, 600]),  # From the end of the iteration before.
    ],
)
def test_iterations_last_until_their_work_ends(spacing: int, kernel: int, times: list[int]) -> None:
    """The host launches and returns, as where CUDA graphs are launched asynchronously."""
    (row,) = phases(ahead(spacing, kernel, len(times))).frame.rows(named=True)
    assert row["host_ns"] == 100
    assert row["wall_ns"] == sum(times) // len(times)
    assert row["tokens_per_s"] == pytest.approx(4 * len(times) / sum(times) * 1e9)


def test_utilization_is_of_the_step_on_the_gpu_where_the_host_runs_ahead() -> None:
    flops, peak, kernel, count = 2 * 1024**3, 989.4e12, 3_000, 4
    found = utilization(ahead(500, kernel, count))
    assert found is not None
    assert found.mfu == pytest.approx(flops / (kernel / 1e9 * peak), rel=1e-3)
    assert found.model_flops == flops
    # Ranges that hold the work: over their wall time.
    inside = utilization(ahead(500, 90, count))
    assert inside is not None
    assert inside.mfu == pytest.approx(flops / (100 / 1e9 * peak))


def test_numbers_are_those_of_the_server() -> None:
    text = "[Executor] _forward_step {}: 0 ctx reqs, 0 ctx tokens, 64 gen reqs"
    trace = served([(text.format(number), 100) for number in (40, 41, 42)])
    assert trace.tables.steps["number"].to_list() == [40, 41, 42]
    assert trace.tables.steps["source"].unique().to_list() == ["TensorRT-LLM iteration"]
    assert phases(trace).frame["phase"].to_list() == ["decode"]


@pytest.mark.parametrize("count", [1, 3])
def test_iterations_are_steps_also_within_those_of_the_profiler(count: int) -> None:
    """vLLM calls the profiler's step before each iteration, where it has a schedule."""
    b = TraceBuilder()
    for n in range(count):
        begin = 1_000 * n
        annotate(b, f"ProfilerStep#{n + 5}", begin, begin + 1_000, "step")
        annotate(b, "execute_context_0(0)_generation_4(4)", begin + 10, begin + 600)
        op(b, "aten::mm", begin + 20, begin + 30)
        launch(b, n, begin + 25)
    trace = attribute(b.build())
    assert trace.tables.steps["source"].unique().to_list() == ["vLLM iteration"]
    assert trace.tables.steps.select("number", "duration").rows() == [
        (n, 590) for n in range(count)
    ]
    assert phases(trace).frame.select("phase", "iterations").rows() == [("decode", count)]


def test_steps_of_the_profiler_hold_where_there_are_few_iterations() -> None:
    """A training that generates once in a while."""
    b = TraceBuilder()
    for n in range(3):
        annotate(b, f"ProfilerStep#{n}", 1_000 * n, 1_000 * (n + 1), "step")
        for k in range(5):
            launch(b, 5 * n + k, 1_000 * n + 100 * k)
    annotate(b, "execute_context_0(0)_generation_4(4)", 1_350, 1_450)
    assert attribute(b.build()).tables.steps["source"].unique().to_list() == ["ProfilerStep"]


def test_other_steps_have_no_phases() -> None:
    trace = served([(f"step {number}", 100) for number in range(3)])
    found = phases(trace)
    assert found.frame.is_empty()
    assert found.notes == ("the steps are not iterations of a server",)


def test_the_iterations_of_a_server_that_runs_another_ones_code_are_its_own() -> None:
    """SGLang's process with vLLM's annotation, which begins earlier and is around more work."""
    b = TraceBuilder(framework="PyTorch")
    for number in range(4):
        at = number * 10_000
        annotate(b, "execute_context_0(0)_generation_4(4)", at, at + 9_900)
        launch(b, 100 + number, at + 100)
        annotate(b, "step[DECODE bs=4]", at + 1_000, at + 9_000)
        for kernel in range(8):
            launch(b, 10 * number + kernel, at + 2_000 + 500 * kernel)
    trace = attribute(b.build())
    assert trace.tables.steps["source"].unique().to_list() == ["SGLang iteration"]
    assert trace.tables.steps["start"].to_list() == [1_000 + 10_000 * n for n in range(4)]
