"""The command line's front door: exit codes, instant answers, names and their neighbors."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from messages import check_text
from parsed import train_flags
from run_files import facts_of, tensor_files
from tiny_runs import TINY, command, make_photos, refused, train, without_report

import paceline
from paceline.cli import main as front_door
from paceline.cli.main import VERBS, main
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.training.checkpoint.read import load_checkpoint

ROOT = Path(paceline.__file__).parents[1]


def in_a_process(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=variables, timeout=300)


# What is imported -----------------------------------------------------------------------------------------------------


def test_importing_the_package_loads_no_torch_and_has_no_side_effect():
    program = """
import os, sys, threading, warnings, signal, logging
before = (dict(os.environ), os.getcwd(), threading.active_count(), list(warnings.filters), signal.getsignal(signal.SIGINT),
          logging.getLogger().handlers[:], os.listdir("."))
import paceline
after = (dict(os.environ), os.getcwd(), threading.active_count(), list(warnings.filters), signal.getsignal(signal.SIGINT),
         logging.getLogger().handlers[:], os.listdir("."))
assert before == after
heavy = {"torch", "torchvision", "tyro", "numpy", "rich", "PIL", "tensorboard"} & set(sys.modules)
assert not heavy, heavy
assert {"DataError", "PacelineError", "Predictor", "TrainResult", "__version__", "load", "train"} <= set(paceline.__all__)
assert paceline.__version__
try:
    paceline.trian
except AttributeError as problem:
    assert "trian" in str(problem)
else:
    raise AssertionError("an unknown attribute was found")
"""
    done = in_a_process("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_the_module_answers_like_the_command_and_a_closed_pipe_is_no_error():
    done = in_a_process("-m", "paceline", "--version")
    assert (done.returncode, done.stdout) == (0, f"paceline {paceline.__version__}\n")
    pipe = f"set -o pipefail; {sys.executable} -m paceline --help | true"
    done = subprocess.run(
        ["bash", "-c", pipe], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


# Exit codes -----------------------------------------------------------------------------------------------------------


def test_help_shows_every_verb_and_every_verb_has_a_module(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in VERBS:
        assert f"\n  {verb} " in text
        assert callable(front_door.find_command(verb).run)
    assert main([]) == 2
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("flags", "code", "status"),
    [
        pytest.param(["--max-images", "16"], 0, "success", id="no target and the whole length done"),
        pytest.param(["--max-steps", "2"], 0, "stopped_early", id="as many steps as asked"),
        pytest.param(["--target", "top1=0.0", "--eval-every", "1"], 0, "success", id="target reached"),
        pytest.param(["--target", "top1=1.0", "--max-images", "16"], 1, "ran_out", id="ended without it"),
        pytest.param(
            ["--target", "top1=1.0", "--max-steps", "2"], 0, "stopped_early", id="asked to stop before the target"
        ),
        pytest.param(["--optim.lr", "1e30", "--schedule.warmup", "0", "--log-every", "1"], 3, "failed", id="not finite"),
    ],
)
def test_the_exit_code_tells_how_the_run_ended(photos, tmp_path, capsys, monkeypatch, flags, code, status):
    without_report(monkeypatch)
    words = ["train", "classify-demo", "--data", photos, "--output-dir", tmp_path / "run", *TINY, *flags]
    said = command(capsys, *words)
    assert said.code == code, said
    assert "Traceback" not in said.err
    last = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["status"]) == ("end", status)
    if status == "failed":
        # The first step ruins the weights; the second, which logs and checkpoints call 2, shows it.
        bundle = json.loads((tmp_path / "run" / "non-finite-step-000002.json").read_text())
        assert "paceline predict" not in said.out  # no checkpoint was written
        assert bundle["step"] == last["step"] == 2 and check_text(last["reason"], "step 2", "finite")
        assert len(bundle["images"]) == 8 and last["reason"].count("not finite") == 1
        check_text(last["reason"], "initial weights", "step", "finite")


def test_images_of_a_non_finite_step_are_those_of_the_repeated_batch(photos, tmp_path, capsys, monkeypatch):
    """The same step of the same order: without --overfit-one-batch it has the second batch of an epoch, with it the first."""
    without_report(monkeypatch)
    images = {}
    for name, flags in {"plain": [], "one": ["--overfit-one-batch"]}.items():
        ruin = ["--optim.lr", "1e30", "--schedule.warmup", "0", "--log-every", "1", *flags]
        said = command(capsys, "train", "classify-demo", "--data", photos, "--output-dir", tmp_path / name, *TINY, *ruin)
        assert said.code == 3, said
        images[name] = set(json.loads((tmp_path / name / "non-finite-step-000002.json").read_text())["images"])
    assert len(images["one"]) == 8 and images["one"].isdisjoint(images["plain"])


def test_a_checkpoint_between_two_readings_of_the_loss_never_holds_weights_that_are_no_numbers(
    photos, tmp_path, capsys, monkeypatch
):
    without_report(monkeypatch)
    run = tmp_path / "run"
    ruin = ["--optim.lr", "1e30", "--schedule.warmup", "0", "--save-every", "1", "--log-every", "50", "--max-steps", "20"]
    said = command(capsys, "train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, *ruin)
    assert said.code == 3 and "not finite" in said.out + said.err, said
    assert next(run.glob("non-finite-step-*.json"))
    for step in (run / "checkpoints").glob("step-*"):
        for name, tensor in load_checkpoint(step).tensors["model"].items():
            assert not tensor.is_floating_point() or tensor.isfinite().all(), (step, name)


def test_an_interrupt_is_75_and_a_bug_is_3_with_its_traceback(capsys, monkeypatch):
    from paceline.cli.commands import doctor as doctor_verb

    def interrupted(*_):
        raise KeyboardInterrupt

    def broken(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(doctor_verb, "run", interrupted)
    assert main(["doctor"]) == 75
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setattr(doctor_verb, "run", broken)
    assert main(["doctor"]) == 3
    assert "ZeroDivisionError: planted" in capsys.readouterr().err


def test_a_message_comes_from_one_rank_of_a_node_only(capsys, monkeypatch):
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "2")
    assert main(["trian"]) == 2
    assert "train" in capsys.readouterr().err


# Names and their neighbors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "neighbor"),
    [
        (["trian"], "paceline train"),
        (["evaluate"], "paceline eval"),
        (["train", "classify-dmeo"], "classify-demo"),
        (["train", "resnet50-mlperf-3020"], "resnet50-mlperf-3200"),
        (["plan", "resnet-50"], "resnet50"),
        (["train", "classify-demo", "--system", "h100x9"], "h100x8"),
        (["train", "classify-demo", "--system=cpuu"], "cpu"),
        (["train", "classify-demo", "--optim.lrr", "1"], "--optim.lr"),
        (["eval", "--checkpont", "last"], "--checkpoint"),
        (["predict", "--save-imges", "x"], "--save-images"),
        (["prepare", "folder", "--data", ".", "--worker", "1"], "--workers"),
        (["prepare", "floder"], "Did you mean folder?"),
        (["bench", "inputs"], "input"),
    ],
)
def test_an_unknown_name_is_refused_and_its_neighbour_named(capsys, words, neighbor):
    refused(command(capsys, *words), neighbor)


def test_a_name_far_from_all_others_gets_the_whole_menu(capsys):
    refused(command(capsys, "train", "vgg16"), *RECIPES)
    refused(command(capsys, "zzz"), "paceline --help")


FLAGS = train_flags(RECIPES["classify-demo"]())


def typos(flag: str) -> list[str]:
    """One letter wrong, missing, doubled, or two swapped, in the middle of the flag's last word."""
    at = len(flag) - len(flag.rsplit(".", 1)[-1].lstrip("-")) // 2 - 1
    other = "q" if flag[at] != "q" else "x"
    made = [flag[:at] + other + flag[at + 1 :], flag[:at] + flag[at + 1 :], flag[:at] + flag[at] + flag[at:]]
    if at + 1 < len(flag):
        made.append(flag[:at] + flag[at + 1] + flag[at] + flag[at + 2 :])
    return [wrong for wrong in made if wrong not in FLAGS]


@pytest.mark.parametrize("flag", FLAGS)
def test_one_wrong_letter_in_any_flag_is_noticed_and_the_right_one_named(capsys, flag, nightly):
    assert typos(flag)
    for number, wrong in enumerate(typos(flag)):
        forms = ([wrong, "1"], [f"{wrong}=1"], [wrong.replace("-", "_").replace("__", "--", 1), "1"])
        for words in forms if nightly else [forms[number % 3]]:
            said = command(capsys, "train", "classify-demo", "--system", "h100x8", *words)
            refused(said, words[0].partition("=")[0], flag)


def test_a_value_that_does_not_fit_its_flag_is_refused_by_name(capsys):
    cases = {"--seed": "abc", "--optim.name": "adam", "--input.crop-scale": "0.5", "--json": "maybe", "stray": "word"}
    for flag, value in cases.items():
        said = command(capsys, "plan", "classify-demo", "--system", "h100x8", flag, value)
        assert said.code == 2 and "Traceback" not in said.err
        named = "maybe" if flag == "--json" else flag.removeprefix("--").split(".")[-1]
        assert named in said.err, said.err


# A recipe, a system, a task of one's own ------------------------------------------------------------------------------

OWN = '''
from dataclasses import replace
from paceline.config.system import System
from paceline.config.recipes.resnet50 import demo

def fn():
    """Mine."""
    return replace(demo(), seed=77)

def rack7():
    return System("cpu", ranks_per_node=1, memory_gib=3, num_workers=2)

def broken():
    raise ValueError("planted")

def number():
    return 5
'''


@pytest.fixture
def own_file(tmp_path) -> Path:
    file = tmp_path / "my.py"
    file.write_text(OWN)
    return file


def test_a_recipe_and_a_system_of_ones_own_train_from_their_file(photos, own_file, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    words = [
        "train",
        "./my.py:fn",
        "--system",
        "./my.py:rack7",
        "--data",
        photos,
        "--output-dir",
        run,
        *TINY,
        "--max-steps",
        2,
    ]
    assert command(capsys, *words).code == 0
    facts = json.loads((run / "run.json").read_text())
    assert (facts["name"], facts["recipe"]["seed"], facts["system"]["memory_gib"]) == ("./my.py:fn", 77, 3)
    assert facts["system_name"] == "./my.py:rack7" and facts["threads"]["loader"] == 2
    own_file.unlink()  # the recipe is in run.json: its file is not needed any more
    assert command(capsys, "train", run / "run.json", "--output-dir", tmp_path / "again").code == 0
    assert command(capsys, "eval", run).code == 0


def test_without_out_a_run_of_ones_own_recipe_gets_a_numbered_folder(photos, own_file, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert command(capsys, "train", f"{own_file}:fn", "--data", photos, *TINY, "--max-steps", 1).code == 0
        assert (tmp_path / "runs").is_dir() and len(list((tmp_path / "runs").glob(f"*-{number:03d}"))) == 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("{folder}/none.py:fn", "not found"),
        ("{folder}/my.py:missing", "no recipe 'missing'"),
        ("{folder}/my.py:broken", "ValueError: planted"),
        ("{folder}/my.py:number", "returned int, not a Recipe"),
        ("{folder}/my.py:rack7", "returned System, not a Recipe"),
        ("{folder}/bad.py:fn", "SyntaxError"),
    ],
)
def test_a_file_of_ones_own_that_does_not_hold_is_named(own_file, capsys, name, wanted):
    (own_file.parent / "bad.py").write_text("def fn(:\n")
    refused(command(capsys, "train", name.format(folder=own_file.parent)), ".py", wanted)


# show -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["resnet50-mlperf-3200", "--system", "h100x8"], ["401 steps per epoch", "14,837 steps", "802", "400 per rank"]),
        (["resnet50-mlperf-57344", "--system", "h100x8", "--nodes", "448"], ["23 steps per epoch", "across 2 ranks"]),
        (["resnet50-gaudi2-2048", "--system", "h100x8"], ["625 steps per epoch", "21,875 steps"]),
        (
            ["resnet50-a100-3264", "--system", "a100x8"],
            ["393 steps per epoch", "3,264 images   408 per micro-batch", "408 per rank"],
        ),
        (["classify-demo", "--system", "h100x8", "--world-size", "1", "--train-images", "640"], ["640 training images"]),
    ],
)
def test_show_prints_the_published_numbers(capsys, words, wanted):
    said = command(capsys, "plan", *words)
    assert said.code == 0 and said.err == ""
    for text in wanted:
        assert text in said.out, (text, said.out)


def test_show_json_is_one_object_with_recipe_system_plan_and_memory(capsys):
    said = command(capsys, "plan", "resnet50-mlperf-3200", "--system", "h100x8", "--json")
    facts = json.loads(said.out)
    assert facts["plan"]["steps_per_epoch"] == 401 and facts["plan"]["total_steps"] == 14_837
    assert facts["recipe"]["optim"]["lr"] == 11.0 and facts["system"]["ranks_per_node"] == 8
    assert facts["memory"]["parameters"] == 25_560_168
    assert set(facts["plan"]) == {field.name for field in dataclasses.fields(paceline.config.plan.BatchPlan)}  # type: ignore[attr-defined]


def test_show_of_a_run_plans_with_the_runs_own_recipe_data_and_ranks(photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    assert train(capsys, photos, tmp_path / "run").code == 0
    for named in (tmp_path / "run", tmp_path / "run" / "run.json"):
        said = command(capsys, "plan", named)
        assert "batch      8 images   " in said.out and "18 training images" in said.out and "9 images" in said.out, (
            said.out
        )
    plan = json.loads(command(capsys, "plan", tmp_path / "run", "--json").out)["plan"]
    saved = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert {**plan, "stop_after": 0, "eval_steps": 0} == {**saved, "stop_after": 0, "eval_steps": 0}


def test_show_refuses_what_no_machine_can_do(capsys):
    refused(command(capsys, "plan", "classify-demo", "--nodes", 0), "--nodes")
    refused(command(capsys, "plan", "resnet50", "--world-size", 3), "2048 ... 3 ranks")
    refused(command(capsys, "plan", "resnet50", "--target-data", "mine"), "--train-images")


# Recipes are not changed behind anybody's back ------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_a_changed_batch_without_its_learning_rate_is_refused_with_both_ways_out(capsys, tmp_path, verb):
    out = ["--output-dir", tmp_path / "run", "--data", tmp_path / "none"] if verb == "train" else []
    said = command(capsys, verb, "resnet50", "--global-batch-size", 1024, *out)
    refused(said, "from 2048 to 1024", "--optim.lr 1.024", "--optim.lr 2.048")
    assert not (tmp_path / "run").exists()
    assert command(capsys, "plan", "resnet50", "--global-batch-size", 1024, "--optim.lr", "1").code == 0


@pytest.mark.parametrize(("flag", "value", "other"), [("--epochs", 2, "max_images"), ("--max-images", 640, "epochs")])
def test_one_length_replaces_the_other(capsys, flag, value, other):
    name = "classify-demo" if flag == "--epochs" else "resnet50"
    facts = json.loads(command(capsys, "plan", name, flag, value, "--json").out)
    assert facts["recipe"][other] == 0 and facts["recipe"][flag[2:].replace("-", "_")] == value
    refused(command(capsys, "plan", name, "--epochs", 1, "--max-images", 5), "--max-images 5")


def test_a_run_json_repeats_the_run_exactly(photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    assert train(capsys, photos, tmp_path / "first", "--optim.momentum", "0.8", "--ema-decay", "0.5", steps=6).code == 0
    assert command(capsys, "train", tmp_path / "first" / "run.json", "--output-dir", tmp_path / "second").code == 0
    first = tensor_files(tmp_path / "first")
    assert sorted(first) == ["average.safetensors", "model.safetensors", "optimizer.safetensors"]
    assert tensor_files(tmp_path / "second") == first
    was, now = (facts_of(tmp_path / name) for name in ("first", "second"))
    assert was["recipe"] == now["recipe"] and was["plan"] == now["plan"]
    # One changed flag makes another run of it.
    words = ["train", tmp_path / "first" / "run.json", "--output-dir", tmp_path / "third", "--seed", 2]
    assert command(capsys, *words).code == 0
    assert tensor_files(tmp_path / "third")["model.safetensors"] != first["model.safetensors"]


def test_a_repeated_run_forgets_the_target_only_when_the_data_change(photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    assert train(capsys, photos, tmp_path / "a", "--target", "top1=1.0").code == 0
    other = make_photos(tmp_path / "other")
    assert command(capsys, "train", tmp_path / "a" / "run.json", "--output-dir", tmp_path / "b").code == 0
    said = command(capsys, "train", tmp_path / "a" / "run.json", "--output-dir", tmp_path / "c", "--data", other)
    assert said.code == 0 and check_text(said.out, "target", "shapes")
    targets = [json.loads((tmp_path / run / "run.json").read_text())["recipe"]["target"] for run in "abc"]
    assert targets == [[["top1", 1.0]], [["top1", 1.0]], []]


def test_naming_a_system_by_either_spelling_counts_as_given():
    from paceline.cli.flags import parse_run_args

    for words in (["--system", "h100x8"], ["--system=h100x8"], ["--system.prefetch-steps", "4"]):
        assert "system" in parse_run_args(["resnet50", *words], RunOptions(), verb="train").given
    assert "system" not in parse_run_args(["resnet50", "--seed", "4"], RunOptions(), verb="train").given


# Noise ----------------------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_does_on_stdout_and_nothing_on_stderr(photos, tmp_path):
    words = [
        "train",
        "classify-demo",
        "--data",
        str(photos),
        "--output-dir",
        str(tmp_path / "run"),
        *TINY,
        "--max-steps",
        "2",
    ]
    done = in_a_process("-m", "paceline", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "Warning" not in done.stdout
    assert lines[-1].startswith("next: ") and lines[-2].endswith("report.html") and lines[-4].startswith("stopped early: ")
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
