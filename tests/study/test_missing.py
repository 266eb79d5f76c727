"""The commands in a study's notes on missing runs are valid."""

from __future__ import annotations

from tests.study.conftest import Make
from traceana.study.recorded_runs import NETWORKS, command
from traceana.study.step_times import batch_study, ratio_study
from workloads import networks


def test_the_networks_are_the_workloads() -> None:
    assert set(networks.NETWORKS) == NETWORKS


def test_a_workload_is_listed_with_its_options() -> None:
    assert command("JAX", "mlp", "--batch 8", sweep=("processes", (1, 2))) == (
        "traceana record --framework jax --network mlp --sweep processes=1,2 --batch 8 -o FOLDER"
    )


def test_a_script_is_the_users_own(make: Make) -> None:
    (one,) = batch_study([make(network="Net", batch=8)]).missing
    words = "traceana record --sweep batch=1,2,4,16,32,64,128,256,512 -o FOLDER"
    assert one.endswith(f"record more: {words} -- YOUR COMMAND {{batch}}")
    (other,) = ratio_study([make(network="Net", batch=8)]).missing
    assert other.endswith("record another: traceana record -o FOLDER -- YOUR COMMAND")
