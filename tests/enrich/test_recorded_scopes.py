"""Layers, passes and FLOPs of programs of JAX and TensorFlow that are recorded here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.forked import with_keras
from tests.support.frameworks import needs
from tests.support.scope_programs import (
    BATCH,
    REPLICA,
    ROWS,
    SIZE,
    STEPS,
    TURNS,
    WIDTH,
    record_tensorflow,
)
from traceana.analyze.flops import flops
from traceana.analyze.layers import layers
from traceana.runs.layer_manifest import Manifest, read
from traceana.trace import Trace

pytestmark = pytest.mark.frameworks

LINEN = {f"LinenNet{layer}" for layer in ("", ".Conv_0", ".Conv_1", ".Dense_0")}
# Keras opens each scope a second time when the model is called, and TensorFlow numbers it.
NET = {f"net_1.{layer}_1" for layer in ("conv", "bn", "relu", "fc")}
LOSS = "sparse_categorical_crossentropy"
PROGRAMS = {
    "jax/linen": LINEN,
    "jax/nnx": set(),
    "jax/loop": {"stem", "body", "while", "cond"},
    "jax/checkpoint": {"stem", "in1", "in2", "head"},
    "jax/vmap": {"stem", "body"},
    "jax/inference": {"stem", "mid"},
    "jax/sharded": {"stem", "mid"},
    "jax/pmap": {"stem", "mid"},
    "tensorflow/tape": {*NET, LOSS},
    "tensorflow/eager": set(),
    "tensorflow/fit": {*NET, f"compile_loss.{LOSS}"},
    "tensorflow/compiled": {
        *(f"net_1.{layer}_1" for layer in ("conv", "one", "two", "fc")),
        f"compile_loss.{LOSS}",
    },
    "tensorflow/mirrored": {*NET, LOSS},
    "tensorflow/lstm": {"net_1.rnn_1", "net_1.rnn_1.lstm_cell_1", "net_1.fc_1", LOSS},
}
"""Program -> the layers that it names and that compute."""

Opened = Callable[[str], Trace]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scopes")


@pytest.fixture(scope="session")
def opened(root: Path) -> Opened:
    """Return a function that opens a program's recording, made once per framework."""
    traces: dict[str, Trace] = {}

    def opening(program: str) -> Trace:
        framework = program.partition("/")[0]
        if not (root / framework).exists():
            needs("flax" if framework == "jax" else framework)
            if framework == "jax":
                command = [sys.executable, "-m", "tests.support.scope_programs"]
                subprocess.run(
                    [*command, str(root / framework)],
                    check=True,
                    capture_output=True,
                    cwd=Path(__file__).parents[2],
                )
            else:
                with_keras(root / "log", record_tensorflow, root / framework)
        if program not in traces:
            traces[program] = traceana.open(root / program)
        return traces[program]

    return opening


def passes(trace: Trace, model: Manifest | None = None) -> dict[str, dict[str, int]]:
    """Return calls and FLOPs of the layers' forward pass: "calls", "flops" by path."""
    frame = layers(trace, direction=True, model=model).frame
    forward = frame.filter((pl.col("role") == "layer") & (pl.col("direction") == "forward"))
    return {row["layer"]: row for row in forward.to_dicts()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_layers_are_those_that_the_program_names(program: str, opened: Opened) -> None:
    frame = opened(program).tables.layers
    used = opened(program).tables.activities["layer"].unique()
    named = frame.with_row_index("row").filter(
        (pl.col("role") == "layer") & pl.col("row").is_in(used.implode())
    )
    assert set(named["path"]) == PROGRAMS[program]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_passes_add_up_to_the_work(program: str, opened: Opened) -> None:
    trace = opened(program)
    result = layers(trace, costs=False)
    parts = pl.sum_horizontal("forward_ns", "backward_ns", "optimizer_ns", "other_ns")
    assert (result.frame.select(parts == pl.col("time_ns")).to_series()).all()
    assert result.totals["time_ns"] == int(trace.tables.activities["duration"].sum())
    of_layers = result.frame.filter(pl.col("role") == "layer")
    assert of_layers.select(pl.sum_horizontal("forward_ns", "backward_ns") > 0).to_series().all()
    optimizer = result.frame.filter(pl.col("role") == "optimizer")
    assert (optimizer["optimizer_ns"] == optimizer["time_ns"]).all()


@pytest.mark.parametrize(
    "program", sorted(set(PROGRAMS) - {"jax/inference", "jax/nnx", "tensorflow/eager"})
)
def test_a_training_step_has_both_passes_and_an_optimizer(program: str, opened: Opened) -> None:
    found = layers(opened(program), costs=False)
    both = found.frame.filter((pl.col("forward_ns") > 0) & (pl.col("backward_ns") > 0))
    # XLA reuses the forward pass of a checkpointed layer where it is recomputed.
    assert PROGRAMS[program] - set(both["layer"]) <= {"in1", LOSS, f"compile_loss.{LOSS}"}
    (optimizer,) = found.frame.filter(pl.col("role") == "optimizer")["time_ns"]
    assert optimizer > 0


def test_inference_is_forward(opened: Opened) -> None:
    trace = opened("jax/inference")
    # What the program waits for after its last instruction may be any of them.
    work = trace.tables.activities.filter(pl.col("op").is_not_null())
    assert work["direction"].unique().cast(pl.String).to_list() == ["forward"]


def test_what_a_checkpoint_recomputes_is_backward(opened: Opened) -> None:
    trace = opened("jax/checkpoint")
    scopes = trace.tables.ops["scope"].cast(pl.String).gather(trace.tables.activities["op"])
    again = trace.tables.activities.filter(
        scopes.str.contains("rematted_computation").fill_null(False)
    )
    assert again.height
    assert again["direction"].unique().cast(pl.String).to_list() == ["backward"]
    paths = trace.tables.layers["path"].gather(again["layer"])
    assert set(paths) <= {"in1", "in2"}


def test_a_scope_named_body_runs_once_a_turn_and_once_after_the_loop(opened: Opened) -> None:
    trace = opened("jax/loop")
    scopes = trace.tables.ops["scope"].cast(pl.String).gather(trace.tables.activities["op"])
    rows = trace.tables.activities.filter(
        scopes.str.contains(r"jvp\(.*body/dot_general$|jvp\(body\)/dot_general$").fill_null(False)
    ).filter(pl.col("direction") == "forward")
    assert rows.height == STEPS * (TURNS + 1)
    assert set(trace.tables.layers["path"].gather(rows["layer"])) == {"body"}


def test_a_program_without_scopes_has_no_layers_and_a_note(opened: Opened) -> None:
    result = layers(opened("jax/nnx"))
    (note, *_) = result.notes
    assert note.startswith("no layers")
    assert "jax.named_scope" in note
    assert "NNX" in note


def test_operators_without_a_tf_function_are_work_and_the_python_between_is_idle(
    opened: Opened,
) -> None:
    trace = opened("tensorflow/eager")
    names = trace.tables.names["name"].cast(pl.String).gather(trace.tables.activities["name_id"])
    calls = dict(names.value_counts().iter_rows())
    assert (calls["Conv2D"], calls["Conv2DBackpropFilter"]) == (STEPS, STEPS)
    assert trace.tables.activities["duration"].sum() < trace.tables.steps["duration"].sum()
    by_name = {
        name: set(trace.tables.activities.filter(names == name)["direction"].cast(pl.String))
        for name in ("Conv2D", "Conv2DBackpropFilter", "ReluGrad")
    }
    # Which pass runs a Conv2D is not recorded: it is the gradient of a transposed convolution, too.
    assert by_name == {
        "Conv2D": {None}, "Conv2DBackpropFilter": {"backward"}, "ReluGrad": {"backward"},
    }  # fmt: skip
    (note, *_) = layers(trace).notes
    assert note.startswith("no layers") and "tf.function" in note


@pytest.mark.parametrize("program", ["jax/sharded", "jax/pmap"])
def test_devices_compute_their_shards(program: str, opened: Opened) -> None:
    trace = opened(program)
    for layer in ("stem", "mid"):
        assert passes(trace)[layer]["flops"] == STEPS * 2 * ROWS * WIDTH * WIDTH


def test_a_manifest_of_one_replica_counts_for_each(opened: Opened, root: Path) -> None:
    trace = opened("tensorflow/mirrored")
    model = read(root / "tensorflow" / REPLICA)
    one = opened("tensorflow/tape")
    convolution = 2 * BATCH * SIZE * SIZE * 4 * 3 * 3 * 3
    product = 2 * BATCH * (SIZE * SIZE * 4) * 5
    for replicas, run in ((1, one), (2, trace)):
        found = passes(run, model)
        assert found["net.conv"]["flops"] == STEPS * replicas * convolution
        assert found["net.fc"]["flops"] == STEPS * replicas * product


def test_gradients_that_xla_computes_as_products_are_on_their_layers(opened: Opened) -> None:
    """Their scopes are lost; layers of equal tensors are told apart by what they read."""
    frame = layers(opened("tensorflow/compiled"), direction=True).frame
    found = {
        (row["layer"], row["direction"]): row["flops"]
        for row in frame.filter(pl.col("role") == "layer").to_dicts()
    }
    product = STEPS * 2 * BATCH * SIZE * SIZE * 4 * 4
    for layer in ("one", "two"):
        assert found[f"net_1.{layer}_1", "forward"] == product
        assert found[f"net_1.{layer}_1", "backward"] == 2 * product
    outside = frame.filter(pl.col("role") == "unattributed")
    assert not outside["flops"].fill_null(0).sum()


PRODUCT = 2 * ROWS * WIDTH * WIDTH
CONVOLUTION = 2 * ROWS * 8 * 8 * 4 * 3 * 3 * 3
GATES = 2 * BATCH * TURNS * 4 * 16
"""Of an LSTM of 16 units, for each number that it reads."""
FLOPS = {
    # Forward 9 products (3 turns of 2), as many gradients of weights, of inputs all but the stem's.
    "jax/loop": 26 * PRODUCT,
    # On the CPU XLA merges what the checkpoint runs again with what ran before.
    "jax/checkpoint": 11 * PRODUCT,
    "jax/vmap": 5 * PRODUCT,
    "jax/inference": 2 * PRODUCT,
    # Each of two devices has half of the batch.
    "jax/sharded": 5 * PRODUCT,
    "jax/pmap": 5 * PRODUCT,
    # No gradient of the images.
    "jax/linen": 2 * CONVOLUTION + 3 * (2 * ROWS * 64 * 8 * 4 * 9 + 2 * ROWS * 8 * 64 * 5),
    "jax/nnx": 2 * CONVOLUTION + 3 * (2 * ROWS * 4 * 64 * 5),
    "jax/recurrent": GATES * (2 * 6 + 3 * 16) + 3 * (2 * BATCH * TURNS * 16 * 3),
}
"""Program -> the FLOPs of a step, in closed form."""


@pytest.mark.parametrize("program", FLOPS)
def test_a_program_computes_its_closed_form(opened: Opened, program: str) -> None:
    trace = opened(program)
    assert flops(trace).frame["flops"].sum() == STEPS * FLOPS[program]
    assert layers(trace).frame["flops"].sum() == STEPS * FLOPS[program]
