"""Time per image by batch, in closed form."""

from __future__ import annotations

from tests.study.conftest import Make
from traceana.study.step_times import batch_study


def test_time_per_image_is_the_median_step_over_the_batch(make: Make) -> None:
    (row,) = batch_study([make(batch=4)]).result.frame.to_dicts()
    assert row["step_ns"] == 10_000_000
    assert row["image_ns"] == 2_500_000
    assert row["low_ns"] == 9_500_000 / 4
    assert row["high_ns"] == 11_000_000 / 4
    assert row["images_per_s"] == 400.0
    assert (row["status"], row["steps"]) == ("ok", 3)


def test_where_only_the_sum_is_right_it_is_the_mean(make: Make) -> None:
    (row,) = batch_study([make(batch=1, steps_ns=(1, 2, 9), exact=False)]).result.frame.to_dicts()
    assert row["step_ns"] == 4
    assert row["low_ns"] is None


def test_a_run_that_died_stands_at_its_batch_without_a_time(make: Make) -> None:
    runs = [make(batch=batch) for batch in (1, 2)]
    dead = [
        make(batch=batch, complete=False, reason="out of memory", steps_ns=()) for batch in (8, 4)
    ]
    study = batch_study([*runs, *dead])
    frame = study.result.frame
    assert frame["batch"].to_list() == [1, 2, 4, 8]
    assert frame["status"].to_list() == ["ok", "ok", "out of memory", "out of memory"]
    for column in ("step_ns", "image_ns", "low_ns", "high_ns", "images_per_s"):
        assert frame[column].to_list()[2:] == [None, None]
    assert study.result.notes == (
        "PyTorch on alexnet: out of memory at batch 4, 8; largest batch that ran: 2",
    )


def test_times_of_a_run_that_failed_are_no_figures(make: Make) -> None:
    (row,) = batch_study([make(complete=False, reason="signal 9")]).result.frame.to_dicts()
    assert (row["step_ns"], row["status"]) == (None, "signal 9")


def test_series_are_frameworks_devices_and_options(make: Make) -> None:
    runs = [
        make(batch=1),
        make(batch=1, framework="JAX", version="0.10.2"),
        make(batch=1, device_kind="GPU", device_name="V100"),
        make(batch=2, device_kind="GPU", device_name="V100"),
    ]
    study = batch_study(runs)
    assert set(study.result.frame["run"]) == {"PyTorch, CPU", "PyTorch, GPU", "JAX, CPU"}
    assert study.conditions[0] == "alexnet · Pentium III, V100 · PyTorch 2.13.0, JAX 0.10.2"
    assert study.conditions[1] == "median of 3 steps without profiler, warm-up excluded"


def test_a_single_batch_asks_for_a_sweep(make: Make) -> None:
    (sentence,) = batch_study([make(batch=1)]).missing
    assert "--sweep batch=2,4,8,16,32,64,128,256,512" in sentence
    assert batch_study([make(batch=1), make(batch=2)]).missing == ()


def test_without_runs_the_error_names_the_command() -> None:
    study = batch_study([])
    assert study.result.frame.is_empty()
    assert study.result.notes == ("no run with a known batch size",)
    assert "--sweep batch=1,2,4,8,16,32,64,128,256,512" in study.missing[0]


def test_a_script_of_ones_own_is_called_after_its_folder(make: Make) -> None:
    run = make(folder="/runs/mine", framework=None, version=None, network=None)
    (row,) = batch_study([run]).result.frame.to_dicts()
    assert (row["run"], row["network"]) == ("mine", None)


def test_a_run_without_a_batch_is_left_out_and_counted(make: Make) -> None:
    study = batch_study([make(batch=None), make(batch=1), make(batch=2)])
    assert study.result.frame.height == 2
    assert study.result.notes == ("runs without batch size, excluded: 1",)
