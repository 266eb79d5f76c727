"""FLOPs of loops and branches that JAX really ran on the CPU, against their closed form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import polars as pl
import pytest

import traceana
from tests.support.frameworks import needs
from tests.support.traces import TraceBuilder
from traceana.analyze.flops import flops, shapes
from traceana.analyze.layers import layers
from traceana.analyze.roofline import roofline
from traceana.enrich import attribute

pytestmark = pytest.mark.frameworks

SIDE: Final = 128
PRODUCT: Final = 2 * SIDE**3
RUNS: Final = 2

SCRIPT: Final = """
import sys
import jax
import jax.numpy as jnp
from jax import lax

side, runs = int(sys.argv[2]), int(sys.argv[3])
x, w = jnp.ones((side, side)), jnp.full((side, side), 0.01)



def scan(length):
    return lambda x, w, n: lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length)[0]


def nested(x, w, n):
    return lax.scan(lambda c, _: (scan(3)(c, w, n) + 1, None), x, None, 4)[0]


programs = {
    "scan": scan(5),
    "nested": nested,
    "gradient": lambda x, w, n: jax.grad(lambda w: scan(5)(x, w, n).sum())(w),
    "fori": lambda x, w, n: lax.fori_loop(0, 6, lambda _, c: jnp.tanh(c @ w), x),
    "unknown": lambda x, w, n: lax.fori_loop(0, n, lambda _, c: jnp.tanh(c @ w), x),
    "never": lambda x, w, n: lax.fori_loop(0, n - 7, lambda _, c: jnp.tanh(c @ w), x),
    "branch": lambda x, w, n: lax.cond(n > 0, lambda c: jnp.tanh(c @ w) @ w, lambda c: c @ w, x),
}
for name, program in programs.items():
    compiled = jax.jit(program)
    jax.block_until_ready(compiled(x, w, 7))
    jax.profiler.start_trace(f"{sys.argv[1]}/{name}")
    for _ in range(runs):
        jax.block_until_ready(compiled(x, w, 7))
    jax.profiler.stop_trace()
"""

PRODUCTS: Final = {
    "scan": 5,
    "nested": 4 * 3,
    # Forward; of each turn backward the gradient of the weight, and of all but the first that
    # of what came in: it is computed for the first as well, as the loop is one program.
    "gradient": 5 + 2 * 5,
    "fori": 6,
    "unknown": 7,
    "branch": 2,
}


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("jax")
    folder = tmp_path_factory.mktemp("loops")
    command = [sys.executable, "-c", SCRIPT, str(folder), str(SIDE), str(RUNS)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_loop_computes_what_its_body_did_and_no_more(recordings: Path, name: str) -> None:
    trace = traceana.open(recordings / name)
    expected = RUNS * PRODUCTS[name] * PRODUCT
    result = flops(trace)
    assert result.totals["flops"] == expected
    assert layers(trace).totals["flops"] == expected
    assert roofline(trace).totals["flops"] == expected
    # The loop's event is around its body's, as far as they are on one thread; the wait for what
    # they handed over is work too.
    outermost = trace.tables.ops.filter(pl.col("depth") == 0)["duration"].to_numpy().sum()
    all_work = trace.tables.activities["duration"].to_numpy().sum()
    assert result.frame["time_ns"].sum() == all_work
    assert outermost <= all_work < 1.1 * outermost


def test_a_loop_that_makes_no_turn_computes_nothing(recordings: Path) -> None:
    assert not flops(traceana.open(recordings / "never")).totals.get("flops")


@pytest.mark.parametrize("trip_count", ['{"trip_count":4}', None])
def test_a_loop_is_not_counted_beside_a_body_on_another_thread(trip_count: str | None) -> None:
    b = TraceBuilder()
    loop = b.row("instructions", name="while.1", opcode="while", attributes=trip_count)
    product = b.row(
        "instructions", name="dot.1", opcode="dot", parent=loop, input_shapes="[[8,8],[8,8]]",
        input_types='["f32","f32"]', output_shape="[8,8]", output_type="f32",
        attributes='{"lhs_contracting":[1],"rhs_contracting":[0],"lhs_batch":[],"rhs_batch":[]}',
    )  # fmt: skip
    b.row("ops", name="while.1", process=9, thread=1, start=0, duration=50, instruction=loop)
    for turn in range(4):
        b.row("ops", name="dot.1", process=9, thread=2, start=60 + 100 * turn, duration=90,
              instruction=product)  # fmt: skip
    trace = attribute(b.build())
    assert flops(trace).totals["flops"] == 4 * 2 * 8**3
    assert layers(trace).totals["flops"] == 4 * 2 * 8**3
    assert trace.tables.activities["duration"].sum() == 50 + 4 * 90
    (row,) = shapes(trace).frame.filter(pl.col("operator") == "dot").rows(named=True)
    assert (row["calls"], row["time_ns"], row["mean_ns"]) == (4, 4 * 90, 90)
