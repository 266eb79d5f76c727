"""A layer has one name in all commands: that of the manifest beside the trace, where it has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command_line import Run
from tests.support.manifest import FIXTURES

TRACES = (
    "alexnet-cpu-torchscript.json.gz",
    "networks/googlenet-cpu-keras.xplane.pb.gz",
    "xplane/alexnet-cpu-keras.xplane.pb",
)


def named(content: Any) -> Iterator[str]:
    """Yield the values of all columns ``layer``."""
    if isinstance(content, dict):
        if isinstance(content.get("layer"), str):
            yield content["layer"]
        content = list(content.values())
    if isinstance(content, list):
        for one in content:
            yield from named(one)


@pytest.mark.parametrize("trace", TRACES)
def test_every_command_has_the_names_of_layers(run: Run, trace: str) -> None:
    def names(*words: str) -> set[str]:
        result = run(words[0], FIXTURES / trace, *words[1:], "-f", "json")
        assert result.exit_code == 0, result.stderr
        return set(named(json.loads(result.stdout)))

    known = names("layers")
    assert names("report") == known
    assert names("critical", "--by", "layer") <= known
    beside = FIXTURES / f"{trace.partition('.')[0]}.layers.json"
    described = [one["path"] for one in json.loads(beside.read_text("utf-8"))["layers"]]
    tails = {path.replace("/", ".").rpartition(".")[2] for path in described}
    found = next(name for name in sorted(known) if name.rpartition(".")[2] in tails)
    assert run("whatif", FIXTURES / trace, "--scenario", f"layer:{found} x 0.5").exit_code == 0
