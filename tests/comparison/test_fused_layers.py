"""Layers that a compiler fused, beside runs in which they are rows of their own."""

from __future__ import annotations

import pytest

from tests.comparison.shared import compare, diff
from tests.support.traces import TraceBuilder
from traceana.comparison.compared_run import Run
from traceana.comparison.layer_rows import fused_alike
from traceana.runs.layer_manifest import Layer, manifest
from traceana.trace import Trace

CONV, NORM, RELU = "Conv2d", "BatchNorm2d", "ReLU"


def run(source: str, *layers: tuple[str, str | None, int]) -> Trace:
    """Return five steps of ``layers``: path, type and time of each."""
    b = TraceBuilder(source=source)
    b.name("kernel", category="elementwise")
    rows = [b.layer(path, kind) for path, kind, _ in layers]
    begin = 0
    for number in range(5):
        step = b.step(number, begin, 10_000)
        at = begin
        for row, (*_, time) in zip(rows, layers, strict=True):
            b.kernel("kernel", at, time, layer=row, step=step, direction="forward")
            at += time
        begin += 10_000
    return b.build()


EAGER = run(
    "eager", ("net.0", CONV, 500), ("net.1", NORM, 300), ("net.2", RELU, 200), ("net.3", CONV, 400)
)
COMPILED = run("compiled", ("net.0", CONV, 450), ("net.1+2", "fused", 100), ("net.3", CONV, 390))


def rows(a: Trace, b: Trace, **options: dict[str, str]) -> set[tuple[str | None, str | None]]:
    """Return the rows of layers of a diff: the names in both runs."""
    table = diff(a, b, **options).by("layer")
    layers = table.filter(table["role"] == "layer")
    return set(layers.select("a", "b").iter_rows())


@pytest.mark.slow
def test_layers_are_together_where_the_other_run_fused_them() -> None:
    for a, b in ((EAGER, COMPILED), (COMPILED, EAGER)):
        found = diff(a, b)
        assert rows(a, b) == {(one, one) for one in ("net.0", "net.1+2", "net.3")}
        fused = found.by("layer").filter(found.by("layer")["a"] == "net.1+2").to_dicts()[0]
        assert sorted((fused["time_a_ns"], fused["time_b_ns"])) == [100, 500]
        assert (fused["calls_a"] + fused["calls_b"], fused["type_a"]) == (3, "fused")
        assert found.counts["only_a"] == found.counts["only_b"] == 0


@pytest.mark.slow
def test_layers_are_in_the_row_of_the_module_that_another_run_has() -> None:
    """A compiled function, or a function of the module around it, has no row of its own."""
    module = run("module", ("Net", "Net", 800), ("Net.3", CONV, 390))
    for a, b in ((EAGER, module), (module, EAGER)):
        assert {one and one.casefold() for pair in rows(a, b) for one in pair} == {"net", "net.3"}
        found = diff(a, b)
        whole = found.by("layer").filter(found.by("layer")["a"] == "Net").to_dicts()[0]
        assert sorted((whole["time_a_ns"], whole["time_b_ns"])) == [800, 1000]
        assert "layers" not in set(found.changes["change"])
    # The rest of a module that has other layers is no row for them.
    other = run("other", ("net", "Net", 10), ("net.0", CONV, 500), ("net.gelu", "GELU", 90))
    assert ("net.1", None) in rows(EAGER, other)


def test_the_layers_of_all_runs_are_together() -> None:
    more = run("more", ("net.0", CONV, 1), ("net.1", NORM, 1), ("net.2+3", "fused", 1))
    table = compare({"a": EAGER, "b": COMPILED, "c": more}).by("layer").frame
    assert set(table["layer"]) == {"net.0", "net.1+2+3"}
    of = dict(table.filter(table["layer"] == "net.1+2+3").select("run", "step_ns").iter_rows())
    assert of == {"a": 900, "b": 490, "c": 2}


def test_what_both_runs_fused_stays_as_it_is() -> None:
    other = run("other", ("net.0", CONV, 450), ("net.1+2", "fused", 90), ("net.2+4", "fused", 1))
    same = run("same", ("net.0", CONV, 450), ("net.1+2", "fused", 90), ("net.2+4", "fused", 2))
    assert rows(other, same) == {(one, one) for one in ("net.0", "net.1+2", "net.2+4")}
    assert rows(EAGER, EAGER) == {(f"net.{one}", f"net.{one}") for one in range(4)}


def test_an_activation_of_the_whole_network_joins_nothing() -> None:
    eager = [(f"norm{one}", NORM, 100) for one in range(9)]
    fused = [(f"norm{one}+relu", "fused", 100) for one in range(9)]
    found = rows(run("a", *eager, ("relu", RELU, 50)), run("b", *fused))
    assert {a for a, _ in found} >= {f"norm{one}" for one in range(9)}


def test_instructions_without_a_type_do_not_hide_the_name_of_the_model() -> None:
    names = [("conv1", 500), ("relu1", 90), ("relu2", 80), ("loss", 9)]
    ours = run("ours", *((path, None, time) for path, time in names))
    xla = [(f"loop_fusion.{one}", None, 5) for one in range(6)]
    theirs = run("theirs", *((f"alexnet.{path}", None, time) for path, time in names), *xla)
    found = diff(ours, theirs).pairs.drop_nulls("how")
    assert set(found.select("a", "b").rows()) == {(path, f"alexnet.{path}") for path, _ in names}
    labels = {layer.label: layer.path for layer in Run("b", theirs).layers.layers}
    assert (labels["alexnet.relu2"], labels["loop_fusion.1"]) == ("relu2", "loop_fusion.1")


def test_forced_pairs_name_the_layers_of_each_run() -> None:
    found = rows(EAGER, COMPILED, pairs={"net.1": "net.1+2"})
    assert ("net.1", "net.1+2") in found
    assert ("net.2", None) in found


@pytest.mark.parametrize("second", [100, 900])
def test_a_fused_row_is_at_the_place_of_its_first_layer_whatever_took_longest(second: int) -> None:
    """Its layers ran before and after a convolution, and half of its time may be on either side."""
    called = (("conv1", CONV), ("norm1", NORM), ("relu", RELU), ("conv2", CONV), ("norm2", NORM))
    model = manifest(
        network="block",
        framework="PyTorch",
        inputs=(),
        layers=tuple(
            Layer(path=path, type=kind, framework_type=kind, position=position)
            for position, (path, kind) in enumerate(called)
        ),
    )
    times = (500, 300, 200, 400, second)
    eager = run("eager", *((*one, time) for one, time in zip(called, times, strict=True)))
    row = ("norm1+relu+norm2", "fused", second)
    for one in (
        run("first", ("conv1", CONV, 500), row, ("conv2", CONV, 400)),
        run("last", ("conv1", CONV, 500), ("conv2", CONV, 400), row),
    ):
        both = fused_alike([Run("a", eager, model=model), Run("b", one, model=model)])
        for each in both:
            assert [layer.label for layer in each.layers.layers] == ["conv1", row[0], "conv2"]
