"""--rescale-schedule: the number of steps is found once, stands in run.json, and from then on decides alone."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from by_night import ONE_MORE
from messages import check_line
from run_files import cut_after, events_of, facts_of, tensor_files
from tiny_runs import TINY, command, refused

from paceline.training import plan_run
from paceline.training.memory_probe import Throughput

pytestmark = pytest.mark.usefixtures("no_report", "no_charts")

FITTED = ["--rescale-schedule", "--max-images", 8000, "--keep-checkpoints", 99, "--ema-decay", 0.9]


def words_for(photos: Path, run: Path, *more: object) -> list[object]:
    return ["train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, *FITTED, *more]


def never(*_):
    raise AssertionError("it was measured again")


def test_a_schedule_fitted_to_steps_ends_with_them_and_the_run_is_whole(photos, tmp_path, capsys):
    run = tmp_path / "run"
    said = command(capsys, *words_for(photos, run, "--max-steps", 20, "--log-every", 1))
    assert said.code == 0 and check_line(said.out, "--max-steps 20", "20 steps", "1,000"), said
    assert check_line(said.out, "2 steps", "20 in total", "2, 4, 6 and 7 more"), said
    facts, (end,) = facts_of(run), events_of(run, "end")
    assert (
        facts["rescaled_schedule"] == {"requested": "--max-steps 20", "steps": 20} and facts["recipe"]["max_images"] == 160
    )
    assert (facts["plan"]["total_steps"], facts["plan"]["stop_after"]) == (20, 20)
    assert (end["status"], end["step"]) == ("success", 20)
    # The recipe: a tenth of the run is warm-up, the square of what is left falls to 0, evaluations at each tenth.
    rates = [event["lr"] for event in events_of(run, "train")]
    assert rates == [
        pytest.approx(0.01 * ((step / 2) if step <= 2 else (1 - (step - 2) / 18) ** 2)) for step in range(1, 21)
    ]
    assert rates[-1] == 0 and [event["step"] for event in events_of(run, "eval")] == list(range(2, 21, 2))


def test_a_schedule_fitted_to_a_time_is_measured_once_and_repeats_and_resumes_by_its_number(
    photos, tmp_path, capsys, monkeypatch
):
    run, budget = tmp_path / "run", ["--max-time", "60s", "--save-every", 8]
    measured, really = list[Throughput](), plan_run.measure_throughput

    def slowly(*given):
        """The machine's own pace would make the length of this test, and on a slow one no step would fit."""
        measured.append(really(*given))
        return Throughput(step=4.0, evaluation=0.1, first_step=0.1)

    monkeypatch.setattr(plan_run, "measure_throughput", slowly)
    said = command(capsys, *words_for(photos, run, *budget))
    assert said.code == 0 and check_line(said.out, "schedule", "--max-time 60s"), said
    assert min(measured[0].step, measured[0].evaluation, measured[0].first_step) > 0
    facts, (end,) = facts_of(run), events_of(run, "end")
    steps = facts["rescaled_schedule"]["steps"]
    assert 8 < steps < 30 and (facts["rescaled_schedule"]["step_seconds"], facts["rescaled_schedule"]["eval_seconds"]) == (
        4.0,
        0.1,
    )
    # The clock has no more to say: what stands in run.json is a plain run of so many steps.
    assert (end["status"], end["step"]) == ("success", steps) and events_of(run, "train")[-1]["lr"] == 0
    assert (facts["options"]["max_time"], facts["options"]["rescale_schedule"]) == ("", False)
    monkeypatch.setattr(plan_run, "measure_throughput", never)
    killed = shutil.copytree(run, tmp_path / "killed", symlinks=True)
    cut_after(killed, 8)
    assert command(capsys, *words_for(photos, killed, *budget)).code == 0
    again, named = tmp_path / "again", tmp_path / "named"
    assert command(capsys, "train", run / "run.json", "--output-dir", again).code == 0
    assert command(capsys, *words_for(photos, named, "--max-steps", steps)).code == 0
    for other in (killed, again, named):  # and the steps that were measured have left nothing behind
        assert tensor_files(run) == tensor_files(other)
    refused(command(capsys, *words_for(photos, run, *budget)), "finished", "train RUN/run.json", "--max-images")
    assert command(capsys, "train", run / "run.json", "--output-dir", run, "--max-images", 8 * (steps + 3)).code == 0
    assert events_of(run, "end")[-1]["step"] == steps + 3


def test_a_fitted_run_goes_on_by_the_same_words_alone(photos, tmp_path, capsys):
    run = tmp_path / "run"
    assert command(capsys, *words_for(photos, run, "--max-steps", 6, "--save-every", 2)).code == 0
    cut_after(run, 2)
    refused(command(capsys, *words_for(photos, run, "--max-steps", 9)), "--max-steps 6 ... --max-steps 9", "run.json")
    plain = [word for word in words_for(photos, run, "--max-steps", 6) if word != "--rescale-schedule"]
    refused(command(capsys, *plain), "--max-steps 6", "run.json")
    assert command(capsys, *words_for(photos, run, "--max-steps", 6)).code == 0


def test_what_cannot_be_fitted_is_refused_with_what_is_missing(photos, tmp_path, capsys):
    run = tmp_path / "run"
    refused(command(capsys, *words_for(photos, run)), "--rescale-schedule", "--max-steps N or --max-time T")
    said = command(capsys, *words_for(photos, run, "--max-time", "0.01s"))
    refused(said, "one step", "--eval-every", "--max-val-images")
    assert not run.exists()


def test_more_steps_than_the_recipe_has_leave_it_as_it_is(photos, tmp_path, capsys):
    run = tmp_path / "run"
    said = command(capsys, *words_for(photos, run, "--max-images", 40, "--max-steps", 50))
    assert said.code == 0 and check_line(said.out, "--max-steps 50", "5 steps"), said
    assert facts_of(run)["recipe"]["max_images"] == 40


@pytest.mark.parametrize(
    ("first", "flags"),
    [
        pytest.param(["--target"], "", marks=ONE_MORE),
        pytest.param(["--target", "top1=1e-6"], "--target", marks=ONE_MORE),
        (["--target", "--patience", 1, "--eval-every", 1, "--optim.lr", 1e-9], "--patience 0"),
    ],
    ids=["out of steps", "at its target", "out of patience"],
)
def test_a_fitted_run_that_is_finished_prints_a_command_for_other_steps_that_goes_on(
    first, flags, photos, tmp_path, capsys
):
    run = tmp_path / "my run"
    assert command(capsys, *words_for(photos, run, "--max-steps", 8, *first)).code == 0
    (before,) = events_of(run, "end")
    said = command(capsys, *words_for(photos, run, "--max-steps", 12, *first))
    refused(said, "--max-steps 8 ... --max-steps 12")
    printed = said.err.partition("To resume it:\n  paceline ")[2].splitlines()[0]
    assert flags in printed and "--max-images 128" in printed, printed
    assert command(capsys, *shlex.split(printed)).code == 0, printed
    assert events_of(run, "end")[-1]["step"] > before["step"]


def test_a_fitted_run_that_is_cut_off_prints_the_command_that_goes_on_to_its_own_steps(photos, tmp_path, capsys):
    run = tmp_path / "my run"
    assert command(capsys, *words_for(photos, run, "--max-steps", 6, "--save-every", 2)).code == 0
    cut_after(run, 2)
    said = command(capsys, *words_for(photos, run, "--max-steps", 9))
    printed = said.err.partition("To resume it:\n  paceline ")[2].splitlines()[0]
    assert command(capsys, *shlex.split(printed)).code == 0 and events_of(run, "end")[-1]["step"] == 6, printed
