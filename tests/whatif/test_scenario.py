"""Scenarios as text and as files, and what they select."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.errors import NoSuchSelectionError, UsageError
from traceana.report import display_names
from traceana.whatif.changed import selected_work
from traceana.whatif.scenario import NAMED, WORDS, Change, Scenario, scenario
from traceana.whatif.whatif import BoundScenario, Model


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("conv x 0.6", [Change(category="conv", factor=0.6)]),
        ("conv/winograd * 0.5..0.8", [Change(category="conv", part="winograd", factor=(0.5, 0.8))]),
        ("conv × 2", [Change(category="conv", factor=2.0)]),  # noqa: RUF001
        ("no softmax", [Change(category="softmax", remove=True)]),
        ("layer:features.* x 0", [Change(layer="features.*", factor=0.0)]),
        ("kernel:.*x 2.* x 0.5", [Change(kernel=".*x 2.*", factor=0.5)]),
        ("operator:aten::mm x 1", [Change(operator="aten::mm", factor=1.0)]),
        ("host x 0.7", [Change(what="host", factor=0.7)]),
        ("launch x 0.5", [Change(what="launch", factor=0.5)]),
        ("no data", [Change(what="data", remove=True)]),
        ("no sync", [Change(what="sync", remove=True)]),
        ("no synchronization", [Change(what="sync", remove=True)]),
        ("sync x 0", [Change(what="sync", factor=0.0)]),
        ("relu x 0", [Change(category="activation", part="relu", factor=0.0)]),
        ("no ReLU", [Change(category="activation", part="relu", remove=True)]),
        ("activations x 0", [Change(category="activation", factor=0.0)]),
        ("norm x 0", [Change(category="normalization", factor=0.0)]),
        ("dropout x 0", [Change(category="dropout", factor=0.0)]),
        ("direction:optimizer x 0", [Change(direction="optimizer", factor=0.0)]),
        ("Convolution/winograd x 2", [Change(category="conv", part="winograd", factor=2.0)]),
        ("conv x 0.5 + no bias",
         [Change(category="conv", factor=0.5), Change(category="bias", remove=True)]),
        ("data-ready + host x 2",
         [Change(what="data", remove=True), Change(what="host", factor=2.0)]),
    ],
)  # fmt: skip
def test_text(text: str, changes: list[Change]) -> None:
    assert scenario(text).changes == tuple(changes)


@pytest.mark.parametrize(
    "text",
    ["", "conv", "conv x", "conv x fast", "conv x -1", "conv x nan", "conv x 1e9", "no conv x 2",
     "conv x 0.5 + ", "conv x 0.5..0.6..0.7", "kernel:( x 1", "nothing.toml",
     "sync x 0.5", "relu/relu x 0", "host/relu x 0", "layr:fc x 0"],
)  # fmt: skip
def test_text_that_is_no_scenario(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        scenario(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "nearest"), [("rellu x 0", "relu"), ("no nrom", "norm")])
def test_an_unknown_word_is_refused_with_all_that_are_known(text: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        scenario(text)
    message = str(caught.value)
    assert f"(did you mean {nearest}?)" in message
    assert all(word in message for word in (*WORDS, *NAMED))


@pytest.mark.parametrize("word", [*WORDS, *display_names.CATEGORIES.values()])
def test_a_word_stands_for_something(word: str) -> None:
    change, *implied = scenario(f"no {word}").changes
    assert all(one.implied for one in implied)
    assert change == replace(Change(remove=True), **WORDS[word.lower()])


def test_a_class_has_the_same_words_in_a_file_and_in_python() -> None:
    assert Change(category="ReLU") == Change(category="activation", part="relu")


@given(st.text(max_size=30))
def test_any_text_is_a_scenario_or_refused(text: str) -> None:
    try:
        found = scenario(text)
    except UsageError:
        return
    assert found.changes


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'assumes = ["the new GEMM library"]\n'
        '[[change]]\nclass = "gemm"\nfactor = [0.5, 0.8]\n'
        '[[change]]\nlayer = "features.*"\ndirection = "backward"\nremove = true\n'
        '[[change]]\nwhat = "launch"\nfactor = 0.5\n'
    )
    assert scenario(str(file)) == Scenario(
        name="mine",
        changes=(
            Change(category="gemm", factor=(0.5, 0.8)),
            Change(layer="features.*", direction="backward", remove=True),
            Change(what="launch", factor=0.5),
        ),
        assumes=("mine: the new GEMM library",),
    )


@pytest.mark.parametrize(
    "text",
    ["", "[[change]]\nfactor = 'fast'", "[[change]]\nclas = 'conv'", "[[change]]\nfactor = -1",
     "[[change]]\nwhat = 'gpu'", "[[change]]\nkernel = '('", "change = 3", "\0",
     "[[change]]\nfactor = [2, 1]", "[[change]]\nrange = 'logging'\nfactor = 0",
     "[[change]]\nwhat = 'host'\nlayer = 'fc1'\nfactor = 0",
     "[[change]]\nwhat = 'data'\noperator = 'aten::mm'\nremove = true",
     "[[change]]\nwhat = 'host'\noperator = 'aten::mm'\nrange = 'logging'",
     "[[change]]\nwhat = 'host'\ndirection = 'forward'", "[[change]]\nwhat = 'sync'\nfactor = 0.5",
     "[[change]]\nclass = 'host'\nfactor = 0"],
)  # fmt: skip
def test_a_file_that_is_no_scenario(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"bad\.toml") as caught:
        scenario(str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("conv x 1", ["scudnn", "winograd"]),
        ("conv/winograd x 1", ["winograd"]),
        ("layer:features.* x 1", ["nchwToNhwc", "relu", "scudnn", "winograd"]),
        ("kernel:^s x 1", ["scudnn", "sgemmBatched"]),
        ("memcpy x 1", ["Memcpy HtoD"]),
        ("relu x 1", ["relu"]),
        ("activations x 1", ["relu"]),
    ],
)
def test_what_is_selected(text: str, kernels: list[str]) -> None:
    trace = cnn_steps()
    flags = selected_work(trace, *scenario(text).changes)
    names = trace.tables.names["name"].gather(trace.tables.activities["name_id"]).filter(flags)
    assert sorted(names.unique()) == kernels


def test_an_operator_is_selected_with_what_it_calls() -> None:
    build = TraceBuilder()
    outer = build.row("ops", name="aten::clone", start=0, duration=90, depth=0)
    inner = build.row("ops", name="aten::copy_", start=10, duration=70, depth=1, parent=outer)
    build.kernel("copy", 100, 50, op=inner)
    build.kernel("other", 200, 50)
    flags = selected_work(build.build(), *scenario("operator:aten::clone x 0").changes)
    assert flags.tolist() == [True, False]


def test_layers_are_neither_the_optimizer_nor_work_outside() -> None:
    build = TraceBuilder()
    for number, (path, role) in enumerate(
        (("fc", "layer"), ("adam", "optimizer"), ("(outside all layers)", "unattributed"))
    ):
        build.kernel(path, 100 * number, 50, layer=build.layer(path, role=role))
    assert selected_work(build.build(), *scenario("layer:* x 2").changes).tolist() == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "text", ["rnn x 1", "conv/fft x 1", "layer:nothing x 1", "kernel:zzz x 1", "no data",
             "operator:aten::mm x 1"]
)  # fmt: skip
def test_what_the_trace_does_not_have(text: str) -> None:
    with pytest.raises(NoSuchSelectionError) as caught:
        BoundScenario.of(Model.of(cnn_steps()), text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("conv/fft x 0", "no work of class 'conv', part 'fft' in the trace: it has conv/"),
        ("optimizer x 0", "did you mean direction:optimizer?"),
        ("gelu x 0", "no work of class 'activation', part 'gelu' in the trace: it has "),
        ("no sync", "no calls that wait for the device"),
        ("fused-optimizer", "no kernels of an optimizer that is not fused"),
    ],
)
def test_what_there_is_instead_is_named(text: str, instead: str) -> None:
    builder = TraceBuilder()
    builder.name("scudnn", category="conv", algorithm="implicit_gemm")
    builder.kernel("scudnn", 0, 50)
    builder.name("relu", category="activation", function="relu")
    builder.kernel("relu", 50, 50)
    builder.name("fused_sgd", category="elementwise")
    builder.kernel("fused_sgd", 100, 50, direction="optimizer")
    with pytest.raises(NoSuchSelectionError) as caught:
        BoundScenario.of(Model.of(builder.build()), text)
    assert instead in str(caught.value)


def test_names_are_no_text_of_a_change() -> None:
    assert all(scenario(name) is one for name, one in NAMED.items())
