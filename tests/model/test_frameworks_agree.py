"""AlexNet in PyTorch, Keras and JAX has the layers that its description has."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.forked import script, with_keras
from tests.support.frameworks import needs
from tests.support.manifests import manifest_of
from traceana import describe
from traceana.runs.layer_manifest import Manifest, read
from workloads.networks import NETWORKS
from workloads.options import RunOptions, parse_run_options

pytestmark = pytest.mark.frameworks

FIXTURES = Path(__file__).parents[2] / "fixtures"
BATCH = 8
# The weights of the whole width take a second each to draw.
DIVISOR = 8
# A framework's own: how it names and holds things, and whether an input's gradient is known.
OWN = ("path", "framework_type", "layout", "input_gradient")


def in_pytorch(name: str) -> Manifest:
    needs("torch")
    from workloads.pytorch.build import build

    network = NETWORKS[name](width_divisor=DIVISOR)
    side = network.image_size
    return describe(build(network), (BATCH, 3, side, side), name=name)


def in_keras(name: str) -> Manifest:
    needs("keras", "tensorflow")
    with tempfile.TemporaryDirectory() as folder:
        with_keras(Path(folder, "log"), write_in_keras, name, Path(folder, "layers.json"))
        return read(Path(folder, "layers.json"))


def write_in_keras(name: str, path: Path) -> None:
    from workloads.keras.build import build

    network = NETWORKS[name](width_divisor=DIVISOR)
    side = network.image_size
    # Keras has no such layers: their names contain the type.
    types = {"LocalResponse": "LRN"}
    describe(build(network), (BATCH, side, side, 3), types=types).write(path)


def in_jax(name: str) -> Manifest:
    needs("jax")
    import jax

    from workloads.jax.build import apply, initial_parameters

    network = NETWORKS[name](width_divisor=DIVISOR)
    side = network.image_size
    parameters, key = initial_parameters(network), jax.random.key(0)

    def scores(images: Any) -> Any:
        return apply(network, parameters, images, key)

    return describe(scores, (BATCH, side, side, 3), name=name)


FRAMEWORKS = {"PyTorch": in_pytorch, "Keras": in_keras, "JAX": in_jax}


@functools.cache
def described(framework: str, network: str) -> Manifest:
    return FRAMEWORKS[framework](network)


def content(manifest: Manifest) -> list[dict[str, Any]]:
    rows = []
    for layer in manifest.layers:
        row = msgspec.structs.asdict(layer)
        rows.append({key: value for key, value in row.items() if key not in OWN})
    return rows


@pytest.mark.parametrize("network", ["alexnet", "alexnet_2012"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_same_layers_as_the_description(framework: str, network: str) -> None:
    found = described(framework, network)
    reported = manifest_of(RunOptions(network=network, batch=BATCH, width_divisor=DIVISOR))
    assert found.framework == framework
    assert found.network == reported.network
    assert [layer.path.rpartition("/")[2] for layer in found.layers] == [
        layer.path for layer in reported.layers
    ]
    own, expected = content(found), content(reported)
    if framework == "Keras":
        # Over how many channels a class of one's own sums is not to be seen from outside.
        for rows in (own, expected):
            for row in rows:
                if row["type"] == "LRN":
                    row["flops"] = None
    assert own == expected
    assert found.parameter_count == reported.parameter_count
    assert [one.shape for one in found.inputs] == [one.shape for one in reported.inputs]
    layouts = {layer.layout for layer in found.layers if len(layer.inputs[0]) > 2}
    assert layouts == {"channels_first" if framework == "PyTorch" else "channels_last"}


def test_the_totals_are_the_papers() -> None:
    """61 M parameters; 0.7 G multiply-accumulates an image (Sze et al. 2017, table II: 724 M)."""
    one = manifest_of(RunOptions(batch=1, network="alexnet_2012"))
    assert one.parameter_count == 60_965_224
    weighted = [layer for layer in one.layers if layer.parameters]
    assert sum(layer.flops or 0 for layer in weighted) == 2 * 724_406_816


@pytest.mark.parametrize(
    "file", sorted(FIXTURES.glob("xplane/*.layers.json")), ids=lambda p: p.name
)
def test_the_manifests_of_the_xplane_fixtures_are_those_of_their_options(file: Path) -> None:
    provenance = file.with_name(file.name.replace(".layers.json", ".provenance.json"))
    (command,) = json.loads(provenance.read_text("utf-8"))["commands"][:1]
    assert read(file) == manifest_of(parse_run_options(command.split()))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("module", "program", "others"),
    [
        ("torch", "import torch; model = torch.nn.Linear(3, 2)", "jax keras tensorflow flax"),
        (
            "jax",
            "import jax; model = jax.named_call(lambda x: x * 2, name='twice')",
            "torch keras tensorflow flax",
        ),
        (
            "keras",
            "import keras; model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])",
            "torch flax",
        ),
    ],
)
def test_no_other_framework_is_imported(
    module: str, program: str, others: str, tmp_path: Path
) -> None:
    needs(module, *(["tensorflow"] if module == "keras" else []))
    lines = [
        program,
        "import sys, traceana",
        f"before = {{*sys.modules}} & {{*{others.split()!r}}}",
        "assert traceana.describe(model, (4, 3)).inputs[0].shape == (4, 3)",
        f"found = ({{*sys.modules}} & {{*{others.split()!r}}}) - before",
        "assert not found, found",
    ]
    if module == "keras":
        with_keras(tmp_path / "log", script, "\n".join(lines))
        return
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
