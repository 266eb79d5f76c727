"""Layers and direction from name scopes, as TensorFlow and XLA write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import traceana
from tests.readers.xplane.writing import PlaneWriter, write
from tests.support.traces import TraceBuilder
from traceana.analyze.layers import layers
from traceana.enrich import attribute
from traceana.enrich.layers.from_scopes import ScopeLayers
from traceana.enrich.layers.resolve import _with_types
from traceana.trace.schema import conform


def resolved(
    scopes: list[str], operators: list[str] | None = None
) -> list[tuple[str, str, str | None]]:
    """Return (path, role, direction) of each scope; a missing path is empty."""
    names = operators or ["Op"] * len(scopes)
    ops = conform("ops", pl.DataFrame({"name": names, "scope": scopes}))
    found = ScopeLayers.of(ops, conform("activities", pl.DataFrame()))
    directions = found.direction_of(ops["scope"]).to_list()
    rows = [found.layers[i] if i >= 0 else ("", "", "") for i in found.layer_of(ops["scope"])]
    return [
        (path, role or "", direction)
        for (path, _, role), direction in zip(rows, directions, strict=True)
    ]


@pytest.mark.parametrize(
    ("scope", "path", "direction"),
    [
        ("AlexNet/conv1/Conv2D", "AlexNet.conv1", "forward"),
        ("AlexNet/conv1/convolution/ReadVariableOp", "AlexNet.conv1", "forward"),
        ("gradient_tape/AlexNet/conv1/convolution/Conv2DBackpropFilter",
         "AlexNet.conv1", "backward"),
        ("gradients/AlexNet/fc/MatMul_grad/MatMul_1", "AlexNet.fc", "backward"),
        ("replica_3/bert/layer_5/dropout_1/dropout/random_uniform/RandomUniform",
         "bert.layer_5.dropout_1", "forward"),
        ("cond_4/then/_48/net/fc/MatMul", "net.fc", "forward"),
        ("net_1/sum_1/ArithmeticOptimizer/AddOpsRewrite_Leaf_0_Add", "net_1.sum_1", "forward"),
        ("ConstantFolding/gradient_tape/net/fc/MatMul/MatMul", "net.fc", "backward"),
        ("gradient_tape/net/bn/batchnorm/add_1/Sum", "net.bn", "backward"),
        ("gradient_tape/net/bn/moments/mean/truediv/Mul", "net.bn", "backward"),
        ("jit(step)/jit(main)/jvp(AlexNet)/conv1/conv_general_dilated", "AlexNet.conv1", "forward"),
        ("jit(step)/jvp(conv1)/conv_general_dilated", "conv1", "forward"),
        ("jit(step)/transpose(jvp(conv1))/conv_general_dilated", "conv1", "backward"),
        ("jit(step)/transpose(jvp(net))/relu1/jit(relu)/max", "net.relu1", "backward"),
        ("jit(step)/while/body/net/fc/dot_general", "net.fc", "forward"),
        ("jit(step)/jvp()/neg", "", "forward"),
        ("AssignVariableOp", "", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_one_scope(scope: str, path: str, direction: str | None) -> None:
    # A program that trains: what is of no layer has no direction of its own.
    found, _, way = resolved([scope, "gradient_tape/trains/Mul"])[0]
    assert (found, way) == (path, direction)


def test_the_optimizer_is_a_role() -> None:
    found = resolved(["SGD/AssignSub", "jit(step)/optimizer/sub", "adam_1/mul"])
    assert [role for _, role, _ in found] == ["optimizer"] * 3


@pytest.mark.parametrize(
    "name",
    [
        *("rm_sprop_1", "rmsprop", "adafactor", "adadelta", "adagrad", "adamax", "nadam", "muon"),
        *("schedule_free_adam_w", "adam_w_2", "lion", "lamb", "ftrl", "clip_by_global_norm_1"),
    ],
)
def test_optimizers_that_xla_compiled_have_known_names(name: str) -> None:
    assert resolved([f"{name}/mul", "gradient_tape/net/fc/MatMul"])[0] == (name, "optimizer", None)


def test_numbers_are_kept_for_they_may_be_the_layer_s_own() -> None:
    twice = resolved(["net_1/conv_1/Conv2D", "net_1/fc_1/MatMul"])
    assert [path for path, *_ in twice] == ["net_1.conv_1", "net_1.fc_1"]
    blocks = resolved(["stage_1/conv_1/Conv2D", "stage_1/conv_2/Conv2D", "stage_2/conv_1/Conv2D"])
    assert [path for path, *_ in blocks] == ["stage_1.conv_1", "stage_1.conv_2", "stage_2.conv_1"]


def test_what_the_graph_optimizer_rewrote_is_of_the_layer_around() -> None:
    twice = resolved(
        [
            "net_1/bn_1/batchnorm/add",
            "gradient_tape/net_1/bn_1/batchnorm/add_1/Sum",
            "net_1/sum_1/ArithmeticOptimizer/AddOpsRewrite_Add",
        ]
    )
    assert [path for path, *_ in twice] == ["net_1.bn_1", "net_1.bn_1", "net_1.sum_1"]


def test_an_operator_s_own_name_is_no_layer() -> None:
    found = resolved(["net/loss/Softmax", "net/loss/Softmax/sub"], ["Softmax", "Sub"])
    assert [path for path, *_ in found] == ["net.loss", "net.loss"]


@pytest.mark.parametrize(
    ("scope", "operator"),
    [
        ("jit(step)/jvp(net)/conv1/conv_general_dilated", "conv_general_dilated"),
        ("jit(step)/jvp(net)/relu1/jit(relu)/max", "relu"),
        # An internal function of JAX is less specific than its primitive.
        ("jit(step)/jvp(net)/drop/jit(_where)/select_n", "select_n"),
        ("jit(step)", "jit(step)"),
        ("net/bn/batchnorm/mul_1", "batchnorm"),
        ("gradient_tape/net/bn/batchnorm/mul_1/Mul", "batchnorm"),
        ("net/conv1/convolution", None),
        ("batchnorm/mul", None),
    ],
)
def test_what_an_operator_is_by_its_scope(scope: str, operator: str | None) -> None:
    ops = conform("ops", pl.DataFrame({"name": ["fusion.3"], "scope": [scope]}))
    found = ScopeLayers.of(ops, conform("activities", pl.DataFrame()))
    assert found.operator_of(ops["scope"]).to_list() == [operator]


@pytest.mark.parametrize(
    ("scope", "path", "direction"),
    [
        # Words of loops are scopes of the program where no loop stands.
        ("jit(f)/jvp(body)/dot_general", "body", "forward"),
        ("jit(f)/transpose(jvp(vmap(while)))/dot_general", "while", "backward"),
        ("jit(f)/cond/tanh", "cond", "forward"),
        ("jit(f)/while/tanh", "while", "forward"),
        ("jit(f)/jvp()/while/body/closed_call/body/dot_general", "body", "forward"),
        ("jit(f)/jvp()/while/body/closed_call/while/tanh", "while", "forward"),
        ("jit(f)/transpose(jvp())/while/body/body/mul", "body", "backward"),
        ("jit(f)/net/while/cond/lt", "net", "forward"),
        ("jit(f)/cond/branch_1_fun/cond/tanh", "cond", "forward"),
        ("jit(f)/jvp()/cond/branch_0_fun", "", "forward"),
        ("jit(f)/jvp()/while/body/while/body/fc/dot_general", "fc", "forward"),
        ("jit(f)/scan/while/body/fc/dot_general", "fc", "forward"),
        ("jit(f)/scan/dot_general", "scan", "forward"),
        ("jit(f)/while/body", "", None),
        # Nested transformations of any depth.
        ("jit(f)/transpose(jvp(vmap(vmap(vmap(fc)))))/mul", "fc", "backward"),
        ("jit(f)/transpose(jvp(jvp()))/checkpoint/rematted_computation/in1/tanh", "in1",
         "backward"),
        ("jit(f)/while/body/rematted_computation/in1/tanh", "in1", "backward"),
        # The scope of a checkpointed call is written twice in the backward pass.
        ("jit(f)/transpose(jvp(net))/jvp(net)/checkpoint/b1/c1/mul", "net.b1.c1", "backward"),
        ("jit(f)/transpose(jvp(net))/b/jvp(net)/b/checkpoint/rematted_computation/c1/tanh",
         "net.b.c1", "backward"),
        ("jit(f)/transpose(jvp(vmap(net)))/jvp(vmap(net))/checkpoint/c1/mul", "net.c1",
         "backward"),
        ("jit(f)/transpose(jvp(a))/a/jvp(a)/a/checkpoint/a/mul", "a.a.a", "backward"),
        ("jit(f)/transpose(jvp(net))/jvp(net)/checkpoint/o/checkpoint/o/mul", "net.o.o",
         "backward"),
        ("jit(f)/transpose(jvp(net))/jvp(net)/remat2", "net", "backward"),
        ("jit(f)/transpose(jvp(net))/net/while/body/closed_call/checkpoint/c1/mul", "net.net.c1",
         "backward"),
        # A gradient of a gradient, in scopes of the program.
        ("jit(f)/transpose(jvp(net))/jvp(net)/mul", "net.net", "backward"),
        ("jit(f)/transpose(jvp(net))/jvp(inner)/checkpoint/c1/mul", "net.inner.c1", "backward"),
        ("jit(_fun)/shard_map/jvp(mid)/dot_general", "mid", "forward"),
        # What XLA joined.
        ("jit(f)/transpose(jvp(loss))/mul;jit(f)/transpose(jvp(loss))/add", "loss", "backward"),
        ("mul;jit(f)/jvp(fc)/add", "fc", "forward"),
        ("mul;jit(train_step)/add", "", None),
        ("jit(f)/(transpose(jvp(fc))/psum:transpose(jvp(conv))/psum)", "", "backward"),
        ("jit(f)/(jvp(fc)/psum:transpose(jvp(fc))/psum)", "fc", "forward"),
        ("transpose(jvp())", "", None),
        ("jit(f)/jvp(net)/drop/jit(_threefry_fold_in)/apply/add", "net.drop", "forward"),
        # The subscripts of jax.numpy.einsum, as flax.linen and jax.nn write them.
        ("jit(f)/jvp(net)/attn/...qhd,...khd->...hqk/dot_general", "net.attn", "forward"),
        ("jit(f)/transpose(jvp(attn))/vmap(BNTS,BSNH->BTNH)/dot_general", "attn", "backward"),
        ("jit(f)/transpose(jvp(vmap(attn/bij, bjk -> bik)))/transpose", "attn", "backward"),
        ("jit(f)/bhqd,bhkd->bhqk/dot_general", "", None),
        # A scope of the program may be called as an operator of TensorFlow is.
        ("jit(f)/jvp(net)/Mean/add", "net.Mean", "forward"),
        # TensorFlow: transfers are named after what they send.
        ("sgd_placeholder_1/_13", "", None),
        ("Identity_5/_21", "", None),
        ("GroupCrossDeviceControlEdges_0/NoOp/_16", "", None),
        ("GroupCrossDeviceControlEdges_0/NoOp", "", None),
        ("update_0/AssignVariableOp", "", None),
        ("update_1/AssignVariableOp/_6", "", None),
        ("replica_1/net/loss/Sum/_19", "net.loss", None),
        ("IteratorGetNext", "", None),
        ("net/IteratorGetNext_1", "net", None),
        ("Identity_2/ReadVariableOp", "", None),
        ("StatefulPartitionedCall/gradient_tape/net/fc/MatMul/MatMul", "net.fc", "backward"),
        ("gradient_tape/replica_1/net/fc/MatMul/MatMul_1", "net.fc", "backward"),
        # Loops of TensorFlow repeat the scope that they are in.
        ("net/rnn/while/body/_1/net/rnn/while/cell/MatMul", "net.rnn.cell", "forward"),
        ("gradient_tape/net/rnn/while/net/rnn/while_grad/body/_9/gradient_tape/net/rnn/while/"
         "gradients/net/rnn/while/cell/MatMul_grad/MatMul", "net.rnn.cell", "backward"),
        ("net/rnn/TensorArrayUnstack/TensorListFromTensor", "net.rnn", "forward"),
        ("net/while/MatMul", "net.while", "forward"),
    ],
)  # fmt: skip
def test_a_scope_beside_a_training_step(scope: str, path: str, direction: str | None) -> None:
    found, _, way = resolved([scope, "gradient_tape/trains/Mul"])[0]
    assert (found, way) == (path, direction)


def test_of_a_program_that_does_not_train_all_but_transfers_is_forward() -> None:
    found = resolved(["net/fc/MatMul", "Add", "IteratorGetNext", "fc/MatMul/_3", "sgd/Sub"])
    assert [way for *_, way in found] == ["forward", "forward", None, None, None]


def test_the_type_of_a_layer_that_xla_compiled_has_no_number() -> None:
    """XLA numbers the instructions of a program: Conv2D.2 is of TensorFlow's operator Conv2D."""
    b = TraceBuilder(framework="TensorFlow")
    for number, (name, scope) in enumerate(
        [("Conv2D.2", "net/c1/Conv2D"), ("dot.4", "net/fc/MatMul_1"), ("relu.1", None)]
    ):
        row = b.row("instructions", name=name, opcode="fusion", scope=scope)
        b.row("ops", name=name, scope=scope, process=9, thread=1, start=10 * number, duration=9,
              instruction=row)  # fmt: skip
    b.row("ops", name="Relu", scope="net/act/Relu_1", process=9, thread=1, start=50, duration=9)
    found = attribute(b.build()).tables.layers.filter(pl.col("role").cast(pl.String) == "layer")
    types = dict(found.select("path", "type").iter_rows())
    assert types == {"net.c1": "Conv2D", "net.fc": "MatMul", "net.act": "Relu"}


def test_an_instruction_of_xla_s_own_has_the_direction_of_the_function_around_it() -> None:
    """The bits of a dropout mask: the function that draws them has the scope of the layer."""
    b = TraceBuilder(framework="TensorFlow")
    for start, duration, scope in [
        (0, 100, "net/drop/StatelessRandomUniformV2"),
        (10, 80, None),
        (200, 100, "gradient_tape/net/rnn/while_grad"),
        (210, 80, None),
        (400, 100, "sgd/AssignSubVariableOp"),
        (410, 80, None),
        (600, 50, None),
    ]:
        row = b.row("instructions", name="call", opcode="call", scope=scope)
        b.row("ops", name="call", scope=scope, process=9, thread=1, start=start,
              duration=duration, instruction=row)  # fmt: skip
    trace = attribute(b.build())
    directions = trace.tables.ops.sort("start")["direction"].to_list()
    assert directions == [*["forward"] * 2, *["backward"] * 2, *[None] * 3]


def test_a_loop_that_xla_compiled_is_an_operator() -> None:
    tape = "gradient_tape/net/rnn/while"
    of_cell = ("net.rnn.cell", "layer")
    of_layer = ("net.rnn", "layer")
    wanted = {
        "net/rnn/while": (*of_layer, "forward"),
        "net/rnn/while/add_1": (*of_layer, "forward"),
        "net/rnn/while/cell/MatMul": (*of_cell, "forward"),
        f"{tape}/gradients/net/rnn/while/cell/MatMul_grad/MatMul": (*of_cell, "backward"),
        f"{tape}/net/rnn/while/cell/Cast_1/ReadVariableOp_0/accumulator": (*of_cell, "backward"),
        f"{tape}/net/rnn/while/Placeholder_0/accumulator": (*of_layer, "backward"),
        f"{tape}/net/rnn/while_grad": (*of_layer, "backward"),
        # A loop that is not within a layer, and a layer that has the name of one.
        "while": ("", "", None),
        "gradient_tape/while/while/Tanh_0/accumulator": ("", "", "backward"),
        "net/cond/MatMul": ("net.cond", "layer", "forward"),
    }
    assert dict(zip(wanted, resolved(list(wanted)), strict=True)) == wanted


GPU_WORK = {
    # scope:Type -> (path, direction, nanoseconds)
    "net/conv1/Conv2D:Conv2D": ("net.conv1", "forward", 500),
    "net/conv1/Relu:Relu": ("net.conv1", "forward", 70),
    "gradient_tape/net/conv1/Conv2D/Conv2DBackpropFilter:Conv2DBackpropFilter":
        ("net.conv1", "backward", 900),
    "replica_1/net/fc/MatMul:MatMul": ("net.fc", "forward", 110),
    "SGD/SGD/update/ResourceApplyGradientDescent:ResourceApplyGradientDescent":
        ("SGD", "optimizer", 40),
    "net/fc/MatMul/_12:_Recv": ("net.fc", None, 30),
    "AddN:AddN": ("(outside all layers)", None, 20),
}  # fmt: skip


def of_xplane(path: Path) -> Path:
    plane = PlaneWriter("/device:GPU:0")
    events = [
        plane.event(f"kernel_{i}", i * 1_000_000, time * 1000, tf_op=label)
        for i, (label, (*_, time)) in enumerate(GPU_WORK.items())
    ]
    plane.line("Stream #7(Kernel)", events)
    return write(path / "gpu.xplane.pb", plane)


def of_json(path: Path) -> Path:
    place = {"pid": 1, "tid": 7}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "name": "thread_name", **place, "args": {"name": "Stream #7(Kernel)"}},
    ]
    for i, (label, (*_, time)) in enumerate(GPU_WORK.items()):
        event = {"ph": "X", **place, "name": f"kernel_{i}", "ts": i + 1, "dur": time / 1000}
        events.append({**event, "args": {"tf_op": label}})
    written = path / "gpu.trace.json"
    written.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    return written


PASSES = ("forward", "backward", "optimizer", "other")


@pytest.mark.parametrize("written", [of_xplane, of_json])
def test_kernels_of_tensorflow_whose_operators_are_not_recorded(
    written: Callable[[Path], Path], tmp_path: Path
) -> None:
    trace = traceana.open(written(tmp_path))
    rows = trace.tables.activities.select(
        trace.tables.layers["path"].gather(trace.tables.activities["layer"]).alias("path"),
        pl.col("direction").cast(pl.String),
        "duration",
    ).rows()
    assert rows == list(GPU_WORK.values())
    result = layers(trace, costs=False)
    times = {row["layer"]: row for row in result.frame.to_dicts()}
    assert times["net.conv1"]["forward_ns"] == 570
    assert times["net.conv1"]["backward_ns"] == 900
    parts = [result.totals[f"{name}_ns"] for name in PASSES]
    assert parts == [680, 900, 40, 50]
    assert sum(parts) == result.totals["time_ns"] == trace.tables.activities["duration"].sum()


def test_one_interrupted_call_does_not_name_the_layer() -> None:
    """A thread lost its processor in the second of three casts."""
    calls = [("Cast", 3), ("Cast", 447), ("Cast", 4), *[("SoftmaxCrossEntropy", 13)] * 3]
    ops = conform(
        "ops",
        pl.DataFrame(
            {
                "name": [name for name, _ in calls],
                "scope": ["loss/Loss"] * len(calls),
                "duration": [duration for _, duration in calls],
                "direction": ["forward"] * len(calls),
            }
        ),
    )
    scopes = ScopeLayers.of(ops, conform("activities", pl.DataFrame()))
    of_op = np.zeros(len(calls), dtype=np.int64)
    assert _with_types([("loss", None, "layer")], ops, of_op, scopes) == [
        ("loss", "SoftmaxCrossEntropy", "layer")
    ]
