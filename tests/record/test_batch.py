"""The examples of a step: reported where they are certain, unknown otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from traceana.record.inside.keras_model import batch_of_fit
from traceana.record.inside.process_report import Report, Settings
from traceana.record.inside.torch_model import Model
from traceana.record.outcome import ProcessReport, read_reports
from traceana.record.programs import batch_of_script as batch_of_ranks


def in_torch(
    folder: Path, network: Any, *inputs: Any, loads: tuple[int | None, ...] = (), calls: int = 1
) -> int | None:
    """Train a step of ``network``, with a DataLoader of each batch in ``loads`` iterated before."""
    import torch

    report = Report(Settings(str(folder)))
    model = Model(torch, report)
    model.watch_loaders()
    for batch in loads:
        rows = torch.utils.data.TensorDataset(torch.ones(12, 3))
        next(iter(torch.utils.data.DataLoader(rows, batch_size=batch)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    model.find_module_of(optimizer)
    for _ in range(calls):
        made = network(*inputs)
        (made[0] if isinstance(made, tuple) else made).sum().backward()
    optimizer.step()
    model.step_ended()
    found, _ = read_reports(folder)
    return found[0].images_per_step if found else None


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module, whose loaders are as before when the test is over."""
    module: Any = pytest.importorskip("torch")
    loader = module.utils.data.DataLoader
    monkeypatch.setattr(loader, "__iter__", loader.__iter__)
    return module


@pytest.mark.frameworks
def test_a_convolution_of_a_batch_gives_it(torch: Any, tmp_path: Path) -> None:
    nn = torch.nn
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert in_torch(tmp_path, network, torch.ones(5, 3, 8, 8)) == 5


@pytest.mark.frameworks
def test_a_loader_gives_it_whatever_the_network(torch: Any, tmp_path: Path) -> None:
    assert in_torch(tmp_path, torch.nn.Linear(3, 2), torch.ones(4, 3), loads=(4, 6)) == 4


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "case",
    ["no batch axis", "time first", "linear", "called twice", "another loader", "windows"],
)
def test_it_is_unknown_where_it_would_be_guessed(case: str, torch: Any, tmp_path: Path) -> None:
    nn = torch.nn
    images = torch.ones(5, 3, 8, 8)

    class Windows(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(3, 4, 3)

        def forward(self, x: Any) -> Any:
            return self.conv(x.reshape(-1, 3, 4))

    found = {
        "no batch axis": lambda: in_torch(tmp_path, nn.Conv2d(3, 4, 3), torch.ones(3, 8, 8)),
        "time first": lambda: in_torch(tmp_path, nn.LSTM(3, 2), torch.ones(7, 4, 3)),
        "linear": lambda: in_torch(tmp_path, nn.Linear(3, 2), torch.ones(4, 3)),
        "called twice": lambda: in_torch(tmp_path, nn.Conv2d(3, 4, 3), images, calls=2),
        "another loader": lambda: in_torch(tmp_path, nn.Conv2d(3, 4, 3), images, loads=(4,)),
        "windows": lambda: in_torch(tmp_path, Windows(), torch.ones(2, 24)),
    }[case]()
    assert found is None


def test_ranks_add_up_where_each_reported_its_own() -> None:
    def rank(number: int, batch: int | None) -> ProcessReport:
        return ProcessReport(executable="p", rank=number, world_size=2, images_per_step=batch)

    one, other, unknown = rank(0, 4), rank(1, 3), rank(1, None)
    assert batch_of_ranks(one, [one, other]) == 7
    assert batch_of_ranks(one, [one, unknown]) is None
    assert batch_of_ranks(one, [one]) is None
    assert batch_of_ranks(ProcessReport(executable="p", images_per_step=4), []) == 4


def test_fit_on_arrays() -> None:
    assert batch_of_fit(np.ones((60, 3)), 5) == 5
    assert batch_of_fit([np.ones((60, 3)), np.ones(60)], None) == 32
    assert batch_of_fit(np.ones((10, 3)), None) == 10
    # A data set of one's own may call anything its batch_size.
    assert batch_of_fit(SimpleNamespace(batch_size=4), None) is None


@pytest.mark.frameworks
def test_fit_on_a_loader_of_torch(torch: Any) -> None:
    rows = torch.utils.data.TensorDataset(torch.ones(12, 3))
    assert batch_of_fit(torch.utils.data.DataLoader(rows, batch_size=4), None) == 4


@pytest.mark.frameworks
@pytest.mark.exhaustive
def test_fit_on_datasets_of_tensorflow() -> None:
    tf: Any = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices(np.ones((60, 3), "f"))
    batches = rows.batch(8)
    assert batch_of_fit(batches.shuffle(2).cache().repeat().prefetch(1), None) == 8
    assert batch_of_fit(rows.batch(8, drop_remainder=True).map(lambda x: x), None) == 8
    # What maps batches may change how many examples they have.
    assert batch_of_fit(batches.map(lambda x: tf.concat([x, x], 0)), None) is None
