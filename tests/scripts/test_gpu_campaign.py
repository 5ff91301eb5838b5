"""The GPU campaign, dry: its limits and its photos; every item of every call by night."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from paceline.config.plan import make_plan
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.distributed.device.systems import h200x8
from paceline.models.memory_estimate import estimate_recipe_memory, max_images_per_forward
from paceline.models.registry import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "gpu"
# Number of tests that share the items of a call.
PARTS = {"first": 2, "second": 1, "rest": 6}


@pytest.fixture
def scripts(monkeypatch):
    """Imports one of the scripts, which see each other as they do when they are run."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


def dry_run(call: str, tmp_path: Path, *more: object) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A call as a command; -> how it ended, and the folder of its results."""
    out = tmp_path / "out"
    words = [sys.executable, SCRIPTS / "campaign.py", call, "--out", out, "--scratch", tmp_path / "scratch", "--dry-run"]
    return subprocess.run([*map(str, words), *map(str, more)], capture_output=True, text=True), out


def lines_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


@pytest.mark.nightly("a command that measures; all items run dry by night")
def test_an_item_runs_dry_and_leaves_few_files_of_results(tmp_path):
    done, out = dry_run("rest", tmp_path, "--only", "ceilings")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in out.iterdir()} == {"log.txt", "results.jsonl", "tables.md"}
    *found, ended = lines_of(out)
    assert {facts["what"] for facts in found} >= {"copy on the device", "matrix product bf16"}
    assert (ended["item"], ended["exit"]) == ("ceilings", [0])
    wrong, _ = dry_run("first", tmp_path, "--only", "ceilings")
    assert wrong.returncode == 2 and "fill, against-cpu" in wrong.stderr


def campaign_in(scripts, tmp_path: Path, seconds: float) -> tuple[ModuleType, object]:
    module = scripts("campaign")
    for name in ("out", "scratch"):
        (tmp_path / name).mkdir()
    deadline = time.monotonic() + seconds
    return module, module.Campaign(tmp_path / "out", tmp_path / "scratch", None, None, deadline)


@pytest.mark.xdist_group("clock")
def test_an_item_that_hangs_or_fails_costs_itself_alone(scripts, tmp_path):
    module, campaign = campaign_in(scripts, tmp_path, 60)
    texts = {
        "hangs": "import sys, time; print('begun', flush=True); time.sleep(60)",
        "fails": "raise SystemExit(3)",
        "works": "from pathlib import Path; Path(__file__).with_name('scratch').joinpath('keep/kept').write_text('it')",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "scratch" / "keep").mkdir()
    ended = [
        module.carry_out(campaign, [module.Item("rest", name, 1, ((str(tmp_path / f"{name}.py"), name),))])
        for name in texts
    ]
    assert ended == [False, False, True]
    assert [(facts["item"], facts["exit"]) for facts in lines_of(tmp_path / "out")] == [
        ("hangs", [124]), ("fails", [3]), ("works", [0]),
    ]  # fmt: skip
    assert "begun" in (tmp_path / "out" / "log.txt").read_text()
    with tarfile.open(tmp_path / "out" / "kept.tar.gz") as packed:
        assert packed.getnames() == ["kept"]


MEETS = """
import pathlib, sys, time
here = pathlib.Path(__file__).parent
(here / f"{sys.argv[1]}.here").touch()
while len(list(here.glob("*.here"))) < 3:
    time.sleep(0.01)
sys.exit(sys.argv[1] == "badly")
"""


def test_items_of_a_stage_run_at_the_same_time(scripts, tmp_path):
    module, campaign = campaign_in(scripts, tmp_path, 600)
    (tmp_path / "meets.py").write_text(MEETS)
    names = ("well", "badly", "also-well")
    stage = [module.Item("first", name, 120, ((str(tmp_path / "meets.py"), name),)) for name in names]
    assert not module.carry_out(campaign, stage)
    assert {facts["item"]: facts["exit"] for facts in lines_of(tmp_path / "out")} == {
        "well": [0],
        "badly": [1],
        "also-well": [0],
    }


def test_only_items_that_name_each_other_start_together_and_at_most_three(scripts):
    parts = scripts("parts")
    names = [[item.name for item in stage] for stage in parts.stages(list(parts.all_items(4)))]
    assert [stage for stage in names if len(stage) > 1] == [["fill", "against-cpu"], ["gpu-tests", "gate-resnet"]]
    head, *others = (parts.Item("rest", name, 1, (), beside="0") for name in "01234")
    assert [len(stage) for stage in parts.stages([head, *others])] == [3, 1, 1]
    assert [len(stage) for stage in parts.stages(others)] == [1] * 4  # what they run next to was done before


def test_what_the_two_calls_take_fits_them_by_what_it_took_before(scripts):
    parts = scripts("parts")
    assert (parts.CALLS["first"], parts.CALLS["second"]) == (400, 250)
    for call in ("first", "second"):
        stages = parts.stages([item for item in parts.all_items(4) if item.call == call])
        expected = [max(item.expected for item in stage) for stage in stages]
        assert min(expected) > 0 and sum(expected) + 15 <= parts.CALLS[call]  # 15 s: wheels, env.txt, the end
        assert all(item.expected < item.seconds for stage in stages for item in stage)


def test_an_item_without_time_or_photos_is_left_out_with_a_line(scripts, tmp_path):
    module, campaign = campaign_in(scripts, tmp_path, 60)
    late = replace(campaign, deadline=time.monotonic() + 12)
    assert not module.carry_out(late, [module.Item("rest", "late", 100, (("nothing.py", ""),))])
    assert module.carry_out(campaign, [module.Item("rest", "decode", 100, (("nothing.py", ""),), photos=True)])
    assert [facts["skipped"] for facts in lines_of(tmp_path / "out")] == ["no time left", "no photos"]


def test_every_measurement_of_every_part_has_a_script(scripts):
    parts = scripts("parts")
    items = parts.all_items(4)
    assert len({item.name for item in items}) == len(items) and {item.call for item in items} == set(parts.CALLS)
    for item in items:
        assert item.seconds <= parts.CALLS["second"]
        for file, name, *_ in item.commands:
            assert file == "-m" or f'"{name}"' in (text := (SCRIPTS / file).read_text()) or 'f"' in text, item


def test_the_loop_s_recipes_have_a_plan_on_one_gpu_long_enough_to_measure(scripts):
    for name, workload in scripts("loop").WORKLOADS.items():
        system = replace(h200x8(), ranks_per_node=1, compile=False)
        recipe = override(RECIPES[workload.recipe](), workload.changes)
        most = max_images_per_forward(estimate_recipe_memory(WORKLOADS[recipe.task], recipe, system), system)
        plan = make_plan(recipe, system, world=1, most=most, train_images=60, val_images=20)
        assert plan.total_steps >= 300 and plan.micro_batches == 1, name
        tiny = override(RECIPES[workload.tiny_recipe](), workload.tiny)
        assert make_plan(tiny, system, world=1, most=8, train_images=8, val_images=2).total_steps >= 3


def test_photos_for_a_gpu_machine_are_few_and_whole(scripts, shared_data, tmp_path, monkeypatch, capsys):
    photos, out = scripts("photos"), tmp_path / "photos"
    monkeypatch.setattr(sys, "argv", ["photos.py", str(shared_data), str(out), "--mb", "3"])
    photos.main()
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 3.5e6
    for split in ("train", "val"):
        document = json.loads((out / "coco_mini" / "annotations" / f"instances_{split}2017.json").read_text())
        files = {path.name for path in (out / "coco_mini" / f"{split}2017").iterdir()}
        assert files == {image["file_name"] for image in document["images"]} and files
        assert {entry["image_id"] for entry in document["annotations"]} <= {image["id"] for image in document["images"]}
        assert len(list((out / "imagenette224" / split).iterdir())) == 10
    with pytest.raises(SystemExit):
        photos.main()
    assert "not empty" in capsys.readouterr().err


def test_a_campaign_that_was_killed_goes_on_where_it_was(scripts, tmp_path):
    module, campaign = campaign_in(scripts, tmp_path, 60)
    names = ("well", "badly", "too-slow", "killed", "never")
    items = [module.Item("rest", name, 10, ()) for name in names]
    lines = [{"item": name, "tiny": False, "what": "found"} for name in names[:4]]
    lines += [{"item": "never", "tiny": True, "exit": [0]}, {"item": "never", "tiny": False, "exit": None}]
    lines += [{"item": name, "tiny": False, "exit": code} for name, code in zip(names, ([0], [0, 1], [124]))]
    (campaign.out / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"item": "torn')
    assert [item.name for item in module.left_of(campaign, items)] == ["never", "too-slow", "killed"]
    (campaign.scratch / "keep").mkdir()
    (campaign.scratch / "keep" / "trace").write_text("kept")
    module.pack(campaign)
    module.go_on(replace(campaign, scratch=tmp_path / "another machine"))
    assert (tmp_path / "another machine" / "keep" / "trace").read_text() == "kept"


@pytest.mark.xdist_group("clock")
def test_a_campaign_that_is_ended_ends_its_item(scripts, tmp_path):
    module, campaign = campaign_in(scripts, tmp_path, 60)
    (tmp_path / "waits.py").write_text("import time; print('begun', flush=True); time.sleep(60)")
    item = module.Item("rest", "waits", 50, ((str(tmp_path / "waits.py"), "waits"),))
    log = (campaign.out / "log.txt").open("a")
    with log, pytest.raises(KeyboardInterrupt), module.running(campaign, item, 50, log) as processes:
        raise KeyboardInterrupt
    assert processes[0].returncode is not None


def test_tables_stand_beside_their_predictions_and_lack_nothing_but_what_was_not_found(scripts, tmp_path):
    tables = scripts("tables")
    rows = [row for row in tables.rows_of(tables.README.read_text()) if row.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| --- ") and not row.endswith("| measured |")]
    for row in rows:
        words = [words for words in (*tables.FILL, *tables.NOT_FILLED) if row.startswith(f"| {words}")]
        assert len(words) + any(f"| {item} |" in row for item in tables.TRIALS) == 1, row
    for words in (*tables.FILL, *tables.NOT_FILLED):
        assert any(row.startswith(f"| {words}") for row in rows), words
    found = [
        {"item": "ceilings", "what": "copy on the device", "gb_per_second": 4210.0},
        {"item": "all-resnet", "step": {"bf16": {
            "images_per_second": {"paceline": 4410.2, "torchvision": 4100.0, "paceline fp16": 4800.0},
            "before_the_rounds": {"paceline": 4000.0, "paceline compiled": 6700.0},
        }}},
        {"item": "all-resnet", "what": "trials", "found": {"paceline fp16": {"first_loss_off": 0.5, "agrees": False}}},
        {"item": "decode", "what": "decode 64 photos on cuda", "refused": "RuntimeError: no nvjpeg"},
        {"item": "conv-relu", "what": "torch.bfloat16 relu 64->64 1x1/1 at 56", "separate_ms": "?"},
        {"item": "ceilings", "exit": [0], "seconds": 9.5}, {"item": "ceilings", "exit": None},
    ]  # fmt: skip
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in found) + "{")
    tables.write(tmp_path)
    text = (tmp_path / "tables.md").read_text()
    for words in (
        "| 4.21; - |",
        "| 4,410 / 4,800 / - / 6,700 / - / - / - / 4,100 |",
        "| 4,800, LOSS OFF BY 5.0e-01 |",
        "no nvjpeg |",
        "not readable: ",
        "| ceilings | 0 | 9.5 |",
    ):
        assert words in text, text


@pytest.mark.nightly("every item of the campaign for minutes")
@pytest.mark.parametrize("call, part", [(call, part) for call, parts in PARTS.items() for part in range(parts)])
def test_every_item_of_a_call_runs_dry(scripts, call, part, shared_data, tmp_path):
    names = [item.name for item in scripts("parts").all_items(1) if item.call == call][part :: PARTS[call]]
    photos = tmp_path / "photos"
    words = [sys.executable, str(SCRIPTS / "photos.py"), str(shared_data), str(photos), "--mb", "3"]
    subprocess.run(words, check=True, capture_output=True)
    done, out = dry_run(call, tmp_path, "--photos", photos, "--limit", 6000, "--only", *names)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert len(list(out.iterdir())) <= 5
    # On a CPU nothing but cuDNN's own operations is refused, and everything agrees with itself.
    for facts in lines_of(out):
        assert "refused" not in facts or "cudnn_convolution" in facts["refused"], facts
        assert facts.get("agrees", True), facts
