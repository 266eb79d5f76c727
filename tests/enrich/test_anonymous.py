"""An anonymous recording has none of its program's words, and all of its figures."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceana
from tests.support.traces import TraceBuilder
from tests.timeline.test_cut import ALEXNET, EXACT, STACK, figures, without
from traceana.enrich.anonymous import Pseudonyms, anonymous, public_words
from traceana.trace.schema import LABEL, TABLES

NAMED = {"command", "file", "label", "layer", "line", "name", "operator", "stack", "text", "type"}
TEXT = (pl.String, LABEL)
PRIVATE = ("acme", "bob", "zebranet", "fraudhead", "10.1.2.3", "zebra")


def private() -> traceana.Trace:
    """Return a trace with private words in every text that a program or a machine gives."""
    b = TraceBuilder(
        source="/home/bob/acme/run.json",
        properties={"host": "zebra-17", "ranks": {"0": "/home/bob/acme/r0.json"}, "cores": 8},
    )
    for table, schema in TABLES.items():
        texts = {name: "AcmeNet_0" for name, dtype in schema.items() if dtype in TEXT}
        if table not in ("activities", "names", "classes", "devices", "ledger", "episodes"):
            b.row(table, **texts)
    b.kernel("volta_sgemm_128x64_nn", 0, 10)
    b.operator("acme::FraudHead", 20, 10)
    b.row("ranges", text="bob@10.1.2.3", kind="nvtx", start=0, duration=1)
    b.row("ops", name="aten::conv2d", module="acme.AcmeNet.fraudhead", start=0, duration=1)
    b.row("frames", file="/home/bob/acme/train.py", function="fraudhead", text="acme = 1")
    return b.build()


def test_no_private_word_is_left(tmp_path: Path) -> None:
    trace = private()
    trace.save(tmp_path / "bundle", anonymize=True)
    made = traceana.open(tmp_path / "bundle")
    kept = {
        (table, name)
        for table, schema in TABLES.items()
        for name, dtype in schema.items()
        if dtype in TEXT
        for text in made.tables[table][name].drop_nulls().cast(pl.String)
        if any(word in text.lower() for word in PRIVATE)
    }
    # Names of calls and collectives, shapes and values of HLO are not the program's.
    assert kept <= {
        *(("activities", "collective"), ("calls", "name"), ("counters", "name")),
        *(("links", "kind"), ("summary", "name"), ("process_groups", "ranks")),
        ("samples", "unit"),
        *(("ops", f"input_{what}") for what in ("shapes", "strides")),
        ("ranges", "input_shapes"),
        *(
            ("instructions", f"{of}_{what}")
            for of in ("input", "output")
            for what in ("shapes", "types", "shape", "type")
        ),
        *(("instructions", what) for what in ("opcode", "target", "attributes")),
    }
    manifest = (tmp_path / "bundle" / "manifest.json").read_text().lower()
    assert not any(word in manifest for word in PRIVATE)
    assert made.meta.properties["cores"] == 8
    assert "volta_sgemm_128x64_nn" in made.tables.names["name"].to_list()


def test_words_keep_their_form() -> None:
    text = Pseudonyms().text
    assert text("acme/train.py(41): main") == "n1/train.py(41): main"
    assert text("acme.layer_3.conv1") == "n1.layer_3.conv1"
    assert text("AcmeNet_3") == "n2_3"
    assert text("AcmeNet_4") == "n2_4"
    assert text("AcmeNetBackward0").endswith("Backward0")
    assert text("/home/bob/lib/python3.11/site-packages/torch/nn/modules/conv.py(5): forward") == (
        "site-packages/torch/nn/modules/conv.py(5): forward"
    )
    for public in ("aten::_convolution", "ProfilerStep#12", "ReluBackward0", "[[2, 3], []]"):
        assert text(public) == public


@given(st.lists(st.text(max_size=30), max_size=8))
def test_different_texts_stay_different(texts: list[str]) -> None:
    replaced = Pseudonyms().text
    words = [
        f"{''.join(filter(str.isalpha, text)) or 'x'}{place}" for place, text in enumerate(texts)
    ]
    assert len({replaced(word) for word in words}) == len(set(words))
    assert all(replaced(word) == replaced(word) for word in texts)


@pytest.mark.parametrize("name", ["made", "made.json.gz"])
@pytest.mark.parametrize("path", [ALEXNET, STACK], ids=lambda path: path.name)
def test_figures_stay(path: Path, name: str, tmp_path: Path) -> None:
    trace = traceana.open(path, as_recorded=True).with_manifest(None)
    (trace.save if name == "made" else trace.export)(tmp_path / name, anonymize=True)
    made = traceana.open(tmp_path / name, as_recorded=True)
    for command in EXACT:
        ours, theirs = (without(figures(it, command), NAMED) for it in (trace, made))
        assert json.dumps(ours) == json.dumps(theirs), command


def test_kineto_file_has_no_private_word(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 10.123, "dur": 1, "cat": "user_annotation"}
    events = [
        {**event, "name": "AcmeNet of bob", "args": {"acme": ["zebra", 1.5, {"bob": 2}]}},
        {**event, "name": "aten::mm", "cat": "cpu_op", "args": {"Input Dims": [[2, 3]]}},
        {**event, "name": "volta_sgemm", "cat": "kernel", "args": {"stream": 7}},
    ]
    keys = {"schemaVersion": 1, "hostname": "zebra", "distributedInfo": {"rank": 0, "x": "acme"}}
    file = tmp_path / "bob.json"
    file.write_text(json.dumps({**keys, "traceEvents": events}))
    traceana.open(file).export(tmp_path / "made.json", anonymize=True)
    text = (tmp_path / "made.json").read_text()
    assert not any(word in text.lower() for word in PRIVATE)
    made = json.loads(text)
    assert [it["ts"] for it in made["traceEvents"]] == [10.123] * 3
    assert made["traceEvents"][1] == events[1]
    assert made["distributedInfo"]["rank"] == 0


def test_exports_of_a_selection_are_anonymous(tmp_path: Path) -> None:
    b = TraceBuilder(source="/home/bob/acme.json")
    layer, frame = b.layer("zebranet"), b.row("frames", file="acme.py", line=3, own=True)
    for number in (1, 2):
        step = b.step(number, 100 * number, 90)
        b.kernel("sgemm", 100 * number, 50, step=step, layer=layer, frame=frame)
    for name in ("made.perfetto.json", "made.speedscope.json"):
        b.build().select(steps=1).export(tmp_path / name, anonymize=True)
        text = (tmp_path / name).read_text().lower()
        assert "n1" in text
        assert not any(word in text for word in PRIVATE)


def test_words_of_rules_are_public() -> None:
    assert {"conv", "relu", "dataloader", "backward"} <= public_words()
    assert not {"acme", "zebranet", "zebra"} & public_words()
    assert anonymous(private()).meta.source == "anonymous"
