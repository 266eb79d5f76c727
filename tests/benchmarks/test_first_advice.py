"""The first advice on recorded programs is the expected one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.first_advice import EXPECTED, advised_rules, place_of

FOLDER: Final = Path(__file__).parents[2] / "fixtures" / "gpu"
NOT_SECOND: Final = ("alexnet_b128_wait10", "resnet18_b64_tf32")


def test_the_expected_advice_is_first_or_second() -> None:
    files = {name: FOLDER / f"{name}.json.gz" for name in EXPECTED if name not in NOT_SECOND}
    there = {name: file for name, file in files.items() if file.is_file()}
    assert len(there) > 15
    places = {name: place_of(EXPECTED[name], advised_rules(file)) for name, file in there.items()}
    assert set(places.values()) <= {1, 2}, places
