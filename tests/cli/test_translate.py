"""`paceline translate`: an original's command line, script or configuration in; our command, tables and numbers out."""

from __future__ import annotations

import json

import pytest
from messages import check_text

from paceline.cli import main as front_door
from paceline.cli.commands.translate import translation_record

C4140 = "SYSTEM=C4140 sbatch -N 1 -n 4 run.slurm"


def refused(capsys, *words: str) -> str:
    assert front_door.main(["translate", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1, shown
    return shown.err


def command(text: str) -> str:
    return translation_record(text)["command"]


def test_our_command_comes_first_then_what_carries_over_is_dead_differs_and_both_numbers(capsys):
    assert front_door.main(["translate", C4140]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "paceline launch ssd-mlperf-512 --system c4140 --scheduler slurm --launcher mpirun --container-runtime apptainer "
    )
    assert "--weights resnet34-mlperf" in first
    titles = [line for line in rest if line and not line.startswith(" ")]
    assert titles[:3] == ["carries over", "without effect", "differs"]
    numbers = {
        line[:18].strip(): line[18:].split()
        for line in rest[rest.index("computed" + " " * 31 + "reference" + " " * 22 + "paceline") :]
    }
    assert numbers["warmup steps"] == ["1,202", "1,202"] and numbers["lr"] == ["0.0475", "0.0475"]
    assert max(map(len, rest)) <= 80


def test_json_has_the_same_in_parts(capsys):
    assert front_door.main(["translate", "python ssd.py -b 128 -e 64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["command", "system_of", "carries", "dead", "differs", "facts"]
    assert found["system_of"] == "gaudi-ssd"
    assert found["facts"]["theirs"]["steps"] == found["facts"]["ours"]["steps"] == 58_688


def test_flags_are_read_as_argparse_reads_them():
    spelt = "python -u ssd_main.py --batch-size 56 --lr-warmup-epochs 5 --lr-decay-epochs 60 75 --dali-workers 3"
    short = "python -u ssd_main.py --batch=56 --lr-warmup-e=5 --lr-decay-epochs 60 75 -j3"
    assert translation_record(spelt) == translation_record(short)
    assert "--schedule.milestones 60 75" in command(short)


def test_an_unknown_flag_is_refused_with_its_neighbours(capsys):
    text = refused(capsys, "mpirun -np 8 python ssd_main.py --batch-size 32 --weight-decai 1e-4")
    assert "--weight-decai: not" in text and "--weight-decay" in text


def test_a_prefix_of_two_flags_and_a_value_of_another_type_are_refused(capsys):
    assert "--lr-decay-epochs or --lr-decay-factor" in refused(capsys, "ssd_main.py --lr-decay 3")
    assert "int" in refused(capsys, "ssd_main.py --epochs many")


def test_numbers_that_make_no_training_are_refused(capsys):
    assert "batch size" in refused(capsys, "ssd_main.py --batch-size 0")
    assert "batch size" in refused(capsys, "ssd_main.py --lr-warmup-epochs 1e400")


def test_a_command_that_is_not_in_quotes_is_told_how(capsys):
    assert "in quotes:  paceline translate 'ssd_main.py --batch-size 3'" in refused(
        capsys, "ssd_main.py", "--batch-size", "3"
    )
    assert "in quotes" in refused(capsys, "--json")
    assert front_door.main(["translate", "--source-system", "mxnet-ssd", "--json", "ssd_main.py --batch-size 8"]) == 0


def test_a_line_longer_than_a_file_name_may_be_is_read():
    assert f"--output-dir /{'a' * 300}" in command(f"ssd_main.py --batch-size 8 --results /{'a' * 300}")


def test_a_variable_that_is_set_nowhere_is_named(capsys):
    assert "Put SYSTEM=NAME before" in refused(capsys, "source ./config_${SYSTEM}.sh; bash run_and_time.sh")
    assert "Put BS=VALUE before" in refused(capsys, "ssd_main.py --batch-size $BS")
    assert "Put NGPU=N" in refused(capsys, "mpirun -np $NGPU python ssd_main.py --batch-size 8")
    assert "--global-batch-size 8 " in command("NGPU=2; mpirun -np $NGPU ssd_main.py --batch-size ${BS:-4}")


def test_text_without_a_known_program_is_refused_with_a_neighbour(capsys):
    assert "ssd_main.py" in refused(capsys, "python ssd_mian.py --batch-size 3")
    check_text(refused(capsys, C4140, "--source-system", "mxnet"), "--source-system mxnet", "gaudi-ssd")
    check_text(refused(capsys, C4140, "--source-system", "gaudi-ssd"), "known program", "run.slurm")


def test_a_configuration_that_is_neither_there_nor_published_is_named(capsys, tmp_path):
    assert "config_Nope.sh" in refused(capsys, "SYSTEM=Nope sbatch run.slurm")
    config = tmp_path / "config_mine.sh"
    config.write_text(
        'source $(dirname ${BASH_SOURCE[0]})/config_common.sh\nexport NGPU=4\nexport EXTRA_PARAMS="--batch-size=64 $MORE"\n'
    )
    assert "config_common.sh: not found" in refused(capsys, str(config))
    (tmp_path / "config_common.sh").write_text("export MORE='--lr=3e-3 --epochs 20'  # tried\n")
    found = translation_record(str(config))["facts"]["theirs"]
    assert (found["global_batch_size"], found["epochs"], found["devices"]) == (256, 20, 4)


SCRIPT = r"""#!/bin/bash
set -e
: "${NUMEPOCHS:=70}"
declare -a CMD
if [ -n "${SLURM_LOCALID-}" ]; then
  CMD=( './bind.sh' python )
else
  CMD=( mpirun --np "4"  # one a GPU
    python -u )
fi
cat <<EOF
ssd_main.py --epochs 1
EOF
# NUMEPOCHS=3; ssd_main.py --epochs 2
ARGS=(--lr 2.92e-3 \
  --weight-decay=1.6e-4)
"${CMD[@]}" ssd_main_async.py --epochs "${NUMEPOCHS}" --batch-size $((2 * 32)) "${ARGS[@]}" 2>&1 | tee out.log ; ret=$?
"""


def test_a_script_is_read_to_the_program_that_it_calls(tmp_path):
    script = tmp_path / "run_and_time.sh"
    script.write_text(SCRIPT)
    found = translation_record(str(script))
    theirs = found["facts"]["theirs"]
    assert (theirs["global_batch_size"], theirs["epochs"], theirs["weight_decay"]) == (256, 70, 1.6e-4)
    assert found["command"].startswith("mpirun -np 4 paceline train ")
    assert not any(row["row"] == "" for row in found["differs"])


def test_a_configuration_of_habanas_runner_is_a_line_of_flags(tmp_path):
    config = tmp_path / "train_1xhls.yaml"
    config.write_text(
        'model: "ssd"\n\nparameters:\n  dtype: "bf16"\n  batch_size: 128\n  epochs: 50\n  k: 0\n  hvd_workers: 8\n'
    )
    assert translation_record(str(config))["facts"]["theirs"]["steps"] == 5_750


def test_nothing_of_a_line_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    translation_record("touch a; X=$(touch b) Y=`touch c`; ssd_main.py --batch-size 32 --results $(touch d) && touch e")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("SYSTEM=C4140 sbatch run.slurm", "ssd-mlperf-512"),
        ("SYSTEM=DSS8440 ./run_with_docker.sh", "ssd-mlperf-1024-dss8440"),
        ("source config_DGXA100_multi_64x8x4x4.sh; sbatch -N $DGXNNODES run.sub", "ssd-mlperf-2048"),
        ("config_DGXA100_multi_2x8x56.sh", "ssd@nvidia-2xdgx-a100-pytorch-896"),
        ("source config_DGX1_multinode.sh; sbatch -N $DGXNNODES run.sub", "ssd@reference-2x8-1024"),
    ],
)
def test_published_numbers_name_a_recipe_without_flags(line, recipe):
    words = command(line)
    assert f"launch {recipe} " in words and not any(group in words for group in ("--optim.", "--schedule.", "--quality."))


def test_other_numbers_are_the_nearest_recipe_and_flags():
    words = command("mpirun -np 8 ssd_main.py --batch-size 128 --lr-warmup-epochs 2.619685 --epochs 60 --momentum 0.8")
    start, flags = "mpirun -np 8 paceline train ssd@dell-dgx1-1024", "--epochs 60 --optim.momentum 0.8"
    assert words.startswith(f"{start} --data DIR --weights none {flags} ")


def test_a_containers_folders_are_those_outside():
    words = command(
        'docker run --rm -v /raid/coco:/data -e NGPU=8 -e "EXTRA_PARAMS=--batch-size=96" mlperf/ssd ./run_and_time.sh'
    )
    assert (
        "--container-runtime docker" in words
        and "--data /raid/coco/coco2017" in words
        and "--system.ranks-per-node 8" in words
    )


def test_work_beside_training_has_its_verb():
    assert command("python ssd.py --mode eval --model_dir /tmp/x") == "paceline eval /tmp/x --checkpoint all"
    assert command("python ssd.py --inference my.jpg") == "paceline predict RUN my.jpg"
    assert command("bash scripts/get_resnet34_backbone.sh") == "paceline weights download resnet34-mlperf"


def test_what_is_dead_says_why():
    found = translation_record("mpirun -np 8 ssd_main.py --bulk-last-wgrad --gradient-predivide-factor 8")
    dead = {row["theirs"]: row for row in found["dead"]}
    assert dead["--bulk-last-wgrad"]["kind"] == "dead" and "engine" in dead["--bulk-last-wgrad"]["why"]
    assert dead["--gradient-predivide-factor 8"]["why"]
