"""`paceline launch` before anything is started: which words go to `train`, and what is refused in one line."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_cells import check_cell
from messages import check_line, check_text
from shared_runs import SSD

from paceline.cli.commands.launch import LaunchFlags, _checked, _parsed, remove_flags
from paceline.cli.main import main
from paceline.cli.printing import Printer
from paceline.config.published import find_published
from paceline.launch.config import NETWORK_PREFIXES, LaunchConfig
from paceline.training.logging.events import EventLog
from paceline.training.previous_run import FinishedError


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch) -> None:
    for name in ("OMP_NUM_THREADS", "PYTHONPATH", "PACELINE_CACHE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def refused(words: str, capsys) -> str:
    """The one line with which a launch is refused."""
    code = main(["launch", *shlex.split(words)])
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said
    assert said.err.startswith("paceline: ") and said.err.count("\n") == 1, said.err
    return said.err


def launched(words: str, capsys) -> str:
    """What a launch says that is done as asked."""
    code = main(["launch", *shlex.split(words)])
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


@pytest.fixture
def sbatch(tmp_path, monkeypatch) -> None:
    """A machine whose one program is an sbatch that does nothing."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_train_gets_every_word_that_is_not_the_launchs_own():
    words = (
        "ssd-demo --nodes 2 --system cpu --scheduler=slurm --max-steps 4 --launcher mpirun --slurm.partition big --quantities 3 "
        "--slurm.no-requeue --walltime 2h --loss-groups 1 2 --dry-run --num-trials 5 --output-dir runs/x "
        "--no-deterministic --slurm.extra a b "
        "--hostfile hosts --container-image x --master-port 5 --container-runtime none --pre-run-command 'sync; true' --json"
    )
    kept = remove_flags(shlex.split(words), LaunchFlags(), LaunchConfig, ("num_trials", "dry_run", "output_dir"))
    assert (
        " ".join(kept) == "ssd-demo --system cpu --max-steps 4 --quantities 3 --loss-groups 1 2 --no-deterministic --json"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--system.interface 'x;id'", "--system.interface 'x;id'"),
        ("--system.interface '$(id)'", "--system.interface '$(id)'"),
        ("--output-dir 'a\ntouch HIT'", r"/a\ntouch HIT ... line break"),
        ("--scheduler slurm --slurm.partition 'x\ntouch HIT'", r"--slurm.partition x\ntouch HIT ... line break"),
        ("--scheduler slurm --slurm.extra a 'x\ntouch HIT'", r"--slurm.extra x\ntouch HIT ... line break"),
        ("--nodes 0", "--nodes 0 ... 1 ... 65,536"),
        ("--nodes 2", "--scheduler local ... --nodes 2 ... --scheduler slurm"),
        ("--nodes 3 --scheduler slurm", "--global-batch-size 8 ... 3 ranks"),
        ("--launcher srun", "srun ... --scheduler slurm ... --launcher torchrun"),
        ("--container-runtime pyxis", "Pyxis ... srun"),
        ("--scheduler slurm --launcher mpirun --container-runtime pyxis", "mpirun"),
        ("--scheduler slurm --container-runtime docker", "--launcher torchrun"),
        ("--scheduler slurm --walltime 3m", "one checkpoint"),
        ("--walltime soon", "auto ... 90m"),
        ("--master-port 70000", "--master-port 70000"),
        ("--num-trials -1", "--num-trials -1 ... 1,000"),
        ("--hostfile hosts", "--hostfile hosts ... --scheduler hostfile"),
        ("--slurm.gres gpu:8", "--slurm.gres ... --scheduler slurm"),
        ("--slurm.no-requeue", "--slurm.requeue ... --scheduler slurm"),
        ("--images-per-second 100", "--images-per-second ... --network-gbit ... --walltime auto"),
        ("--walltime 2h --network-gbit 100", "--images-per-second ... --network-gbit ... --walltime auto"),
        ("--system.interface nope0", "interface ... lo 127.0.0.1"),
        ("--systm cpu", "--systm"),
        ("--data /no/such/folder", "--data /no/such/folder"),
        ("--global-batch-size 16", "optim.lr"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(words, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = f"ssd-demo --system cpu {words}" if "lr" not in text else f"classify-demo --system cpu {words}"
    code = main(["launch", *shlex.split(asked)])
    said = capsys.readouterr().err
    assert code == 2 and check_text(said, text), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "text"), [("a\nb", "line break"), ("a\\b", "must not contain \\ for")])
def test_a_working_directory_that_slurms_lines_cannot_name(name, text, capsys, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    said = refused(f"ssd-demo --system cpu --scheduler slurm --output-dir {tmp_path}/run --dry-run", capsys)
    assert "working directory" in said and check_text(said, text)
    assert not (tmp_path / "run").exists()


def test_data_that_the_nodes_alone_have_are_no_mistake(capsys, tmp_path, sbatch):
    words = f"ssd-demo --system cpu --scheduler slurm --data /raid/no/such --output-dir {tmp_path}/run --dry-run"
    check_text(launched(words, capsys), "--data /raid/no/such", "nodes")


def test_weights_that_are_not_here_are_named_before_a_job_waits(capsys, tmp_path, sbatch):
    words = f"ssd-demo --weights {tmp_path}/nothere.pth --system cpu --output-dir {tmp_path}/run --dry-run"
    check_text(launched(f"{words} --scheduler slurm", capsys), "nothere.pth", "nodes")
    check_text(refused(f"{words} --scheduler local", capsys), "nothere.pth", "not found")


def mounted(script: Path) -> set[str]:
    """What container.sh binds, as apptainer takes it."""
    return set(re.findall(r"--bind (\S+)", script.read_text()))


def test_data_weights_and_stage_of_the_nodes_come_into_the_container(capsys, tmp_path, sbatch):
    run, where = tmp_path / "run", "--scheduler slurm --container-runtime apptainer --container-image x.sif --dry-run"
    words = f"ssd-demo --system cpu --data /raid/no/such --copy-data-to /local/no/disk --mount /raid/x:/x {where} --output-dir {run}"
    launched(words, capsys)
    script = run / "launch" / "container.sh"
    assert mounted(script) >= {"/raid/no/such:/raid/no/such:ro", "/local/no/disk:/local/no/disk:rw", "/raid/x:/x:ro"}
    assert "mkdir -p /local/no/disk  #" in script.read_text()


def test_a_repeated_runs_own_data_come_into_the_container(capsys, tmp_path, sbatch, ssd_run):
    facts = json.loads((ssd_run.folder / "run.json").read_text())
    facts["options"] |= {"data": "/raid/no/such", "copy_data_to": "/local/no/disk"}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    run, where = tmp_path / "again", "--scheduler slurm --container-runtime apptainer --container-image x.sif --dry-run"
    launched(f"{tmp_path}/run.json --system cpu {where} --output-dir {run}", capsys)
    assert mounted(run / "launch" / "container.sh") >= {
        "/raid/no/such:/raid/no/such:ro",
        "/local/no/disk:/local/no/disk:rw",
    }


def test_the_folder_that_doctor_writes_into_is_written(capsys, tmp_path, monkeypatch, sbatch):
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)
    words = "--nodes 2 --scheduler slurm --container-runtime apptainer --container-image x.sif --check-dir shared"
    words += " --system cpu --dry-run"
    assert main(["doctor", *words.split()]) == 0, capsys.readouterr().err
    (script,) = tmp_path.glob("runs/*/launch/container.sh")
    assert f"{tmp_path}/shared:{tmp_path}/shared:rw" in mounted(script)


def test_no_sbatch_is_said_with_another_way(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused(f"ssd-demo --system cpu --scheduler slurm --output-dir {tmp_path}/run", capsys)
    assert check_text(said, "sbatch", "login node") and not (tmp_path / "run").exists()


def test_sbatchs_own_refusal_is_one_line(capsys, tmp_path, monkeypatch):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        "#!/bin/sh\necho 'sbatch: error: Too many nodes\nsbatch: error: Batch job submission failed: "
        "Node count specification invalid' >&2"
        "\nexit 1\n"
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    code = main(["launch", *f"ssd-demo --system cpu --scheduler slurm --nodes 8 --output-dir {tmp_path}/run".split()])
    said = capsys.readouterr().err
    assert code == 2 and said.count("\n") == 1
    check_text(said, "run/launch/job.sbatch", "Node count specification invalid", "`sinfo`")


def test_no_mpirun_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused(f"ssd-demo --system cpu --launcher mpirun --output-dir {tmp_path}/run", capsys)
    check_text(said, "mpirun")


def test_a_busy_port_is_said(capsys, tmp_path, taken_port):
    said = refused(f"ssd-demo --system cpu --master-port {taken_port} --output-dir {tmp_path}/run", capsys)
    check_text(said, f"--master-port {taken_port}", "(Address already in use)")


def test_more_ranks_than_devices_are_refused(capsys, tmp_path):
    said = refused(f"resnet50-mlperf-3200 --system h100x8 --system.ranks-per-node 64 --output-dir {tmp_path}/run", capsys)
    check_text(said, "64 ranks")
    said = refused(
        f"resnet50-mlperf-3200 --system h100x8 --scheduler slurm --slurm.gres gpu:h100:4 --output-dir {tmp_path}/run",
        capsys,
    )
    check_text(said, "--slurm.gres gpu:h100:4", "4 devices", "--system h100x8", "8 ranks")


def test_a_login_nodes_own_devices_are_not_taken_for_the_nodes(capsys, tmp_path):
    said = refused(f"ssd-demo --system auto --scheduler slurm --output-dir {tmp_path}/run", capsys)
    assert check_text(said, "machine", "paceline list systems") and "paceline list systems" in said


def test_a_finished_run_is_refused(capsys, ssd_run):
    words = f"ssd-demo {SSD} --data {ssd_run.data} --max-steps 6 --output-dir {ssd_run.folder}"
    code = main(["launch", *words.split()])
    said = capsys.readouterr().err
    assert code == 2 and str(ssd_run.folder) in said and "finished" in said, said


def test_a_dry_run_writes_and_prints_each_file_and_starts_nothing(capsys, tmp_path):
    run = tmp_path / "run"
    said = launched(f"ssd-demo --system cpu --system.ranks-per-node 2 --output-dir {run} --dry-run --seed 7", capsys)
    (file,) = (run / "launch").iterdir()
    assert file.name == "run.sh" and file.read_text().rstrip() in said
    assert (
        f"paceline train ssd-demo --system cpu --system.ranks-per-node 2 --seed 7 --output-dir {run}"
        in file.read_text().replace(" \\\n   ", "")
    )
    assert file.stat().st_mode & 0o111


def test_trials_have_seeds_and_folders_of_their_own(capsys, tmp_path):
    run = tmp_path / "run"
    launched(f"ssd-demo --system cpu --output-dir {run} --dry-run --num-trials 3 --seed 5 --pre-run-command sync", capsys)
    for number in range(3):
        text = (run / f"trial-{number}" / "launch" / "run.sh").read_text().replace(" \\\n   ", "")
        assert f"--output-dir {run}/trial-{number} --seed {5 + number}\n" in text and text.count("--seed") == 1
        assert "\nsync\n" in text


def test_a_run_without_a_name_gets_the_next_number(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/ssd-demo-001").mkdir(parents=True)
    assert main(["launch", "ssd-demo", "--system", "cpu", "--dry-run"]) == 0
    assert Path("runs/ssd-demo-002/launch/run.sh").is_file()
    text = Path("runs/ssd-demo-002/launch/run.sh").read_text()
    assert f"--output-dir {tmp_path}/runs/ssd-demo-002" in text.replace(" \\\n   ", "")


def test_a_predicted_walltime_is_said_with_its_reason(capsys, script):
    text, said = script(capsys, "resnet50-mlperf-3200-8x8 --system dgx-h100 --nodes 8 --walltime auto")
    reason = re.search(r"^walltime (\d+) min: [\d,]+ steps of .* margin of .* for the start$", said, flags=re.M)
    assert reason and f"#SBATCH --time={reason[1]}\n" in text


def test_a_published_plan_has_a_walltime_where_neither_chip_nor_links_are_known(capsys, script):
    text, said = script(capsys, "ssd-mlperf-1024 --system c4140 --nodes 2 --walltime auto --weights none")
    minutes = re.search(r"^walltime (\d+) min: ", said, flags=re.M)
    assert minutes and check_text(said, "exactly", "v0.7 DellEMC 2xC4140")
    assert f"#SBATCH --time={minutes[1]}\n" in text and int(minutes[1]) > 22.67 * 80 / 50  # published: 50 of the 80 epochs


def test_an_unknown_speed_is_asked_for(capsys, tmp_path):
    said = refused(f"ssd-demo --system cpu --walltime auto --output-dir {tmp_path}/run", capsys)
    assert check_text(said, "ssd-demo", "--images-per-second IMG/S") and "--images-per-second IMG/S" in said


def test_a_number_of_nodes_without_a_plan_names_what_was_published(capsys, tmp_path):
    code = main(
        [
            "launch",
            *f"resnet50-mlperf-3200 --system dgx-h100 --scheduler slurm --nodes 7 --output-dir {tmp_path}/run".split(),
        ]
    )
    said = capsys.readouterr().err
    assert code == 2 and "resnet50-mlperf" in said and "node" in said, said


def page_commands() -> list[str]:
    """The launches in the tables of commands of the migration pages whose recipe was published for their system."""
    pages = (Path(__file__).parents[2] / "docs/reference/generated/migration").glob("*.md")
    texts = [page.read_text().partition("\n## Commands\n")[2].partition("\n## ")[0] for page in sorted(pages)]
    commands = dict.fromkeys(code for text in texts for code in re.findall(r"`paceline (launch [^`]*)`", text))
    named = {command: re.search(r"^launch (\S+) .*?--system (\S+)", command) for command in commands}
    return [command for command, names in named.items() if names and find_published(names[2], recipe_name=names[1])]


@pytest.mark.parametrize("command", page_commands())
def test_a_published_recipe_is_launched_on_a_published_number_of_nodes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = _parsed(Printer(), shlex.split(command)[1:])
    check_cell(asked, monkeypatch)
    published = find_published(asked.system_name, recipe_name=asked.name)
    assert asked.options.nodes in {pairing.nodes for pairing in published}, "published for other numbers of nodes"


def test_every_published_command_has_one_of_ours():
    assert len(page_commands()) >= 9


def test_ranks_that_only_evaluate_belong_to_the_plan(capsys, tmp_path, script):
    words = ["launch", "maskrcnn-nvidia-256-48nodes", "--system", "dgx-h100", "--nodes", "48", "--scheduler", "slurm"]
    words += ["--weights", "none"]
    words += [
        *["--walltime", "1h", "--dry-run", "--launcher", "torchrun", "--data"],
        str(tmp_path),
        "--output-dir",
        str(tmp_path / "run"),
    ]
    assert main([*words, "--dedicated-eval-ranks", "128"]) == 0, capsys.readouterr().err
    assert "--dedicated-eval-ranks 128" in (tmp_path / "run" / "launch" / "job.sbatch").read_text()
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.endswith("Add --dedicated-eval-ranks 128.\n"), error
    assert main([*words, "--dedicated-eval-ranks", "100"]) == 2
    assert "284 of 384 ranks train" in capsys.readouterr().err


@pytest.fixture
def script(tmp_path, sbatch):
    """A function that writes a job for Slurm, without starting it: -> (job.sbatch, what was said)."""

    def script(capsys, words: str) -> tuple[str, str]:
        run = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        said = launched(f"{words} --scheduler slurm --dry-run --output-dir {run}", capsys)
        return (run / "launch" / "job.sbatch").read_text(), said

    return script


def test_a_variable_given_by_hand_is_written_beside_the_systems_own(capsys, script):
    text, _ = script(
        capsys, "maskrcnn-gluoncv-192 --system p3dn --nodes 24 --weights none --system.env NCCL_NSOCKS_PERTHREAD=4"
    )
    set_there = dict(re.findall(r"^export (\w+)=(\S+)", text, flags=re.M))
    assert (set_there["NCCL_NSOCKS_PERTHREAD"], set_there["NCCL_NET_GDR_READ"]) == ("4", "1")
    assert set_there["OMP_NUM_THREADS"] == "2" and text.count("NCCL_NSOCKS_PERTHREAD=4  #") == 1


def test_the_network_that_was_published_is_asked_for_unless_another_is_named(capsys, script):
    def asked(words: str) -> list[str]:
        return re.findall(r"^#SBATCH --network=(.*)$", script(capsys, words)[0], flags=re.M)

    largest = "resnet50-mlperf-20480 --system dgx-h100 --nodes"
    assert asked(f"{largest} 64") == ["sharp"]
    assert asked(f"{largest} 64 --slurm.network=") == []
    assert asked(f"{largest} 32") == []
    assert asked(f"{largest} 32 --slurm.network mine") == ["mine"]


@pytest.mark.parametrize(("status", "code"), [("success", 0), ("stopped_early", 0), ("ran_out", 1)])
def test_a_trial_that_is_finished_already_counts_as_it_ended(capsys, tmp_path, monkeypatch, status, code):
    def finished(request, launch):
        raise FinishedError("this run is finished", Path(request.options.output_dir))

    (tmp_path / "five" / "trial-0").mkdir(parents=True)
    log = EventLog(tmp_path / "five" / "trial-0" / "events.jsonl")
    log.write("end", step=3, epoch=1.0, seconds=12.5, status=status, best={})
    monkeypatch.setattr("paceline.cli.commands.launch.check_not_finished", finished)
    assert main(["launch", *f"ssd-demo --system cpu --output-dir {tmp_path}/five --num-trials 1".split()]) == code
    said = capsys.readouterr().out
    assert check_line(said, "trial 0", "finished") and f",{status},unchecked\n" in said


def test_without_words_the_flags_are_told_and_it_is_a_mistake(capsys):
    assert main(["launch"]) == 2 and "--scheduler" in capsys.readouterr().out
    assert main(["launch", "--help"]) == 0 and "--scheduler" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("--scheduler slurm", "sbatch not found"),
        ("--launcher mpirun", "mpirun not found"),
        ("--container-runtime docker --container-image x", "docker not found"),
        ("--container-runtime apptainer --container-image x.sif", "apptainer ... singularity"),
        ("--scheduler hostfile --hostfile hosts", "ssh not found"),
    ],
)
def test_a_dry_run_needs_no_program_and_says_which_a_start_would(words, lacks, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("hosts").write_text("node1 slots=1\n")
    command = ["launch", *f"ssd-demo --system cpu {words} --output-dir run".split()]
    assert main(command) == 2 and check_text(capsys.readouterr().err, lacks) and not Path("run").exists()
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert check_text(said.splitlines()[-2], lacks) and said.splitlines()[-1].startswith(
        "Nothing was started (--dry-run). Start:"
    )
    assert any(Path("run/launch").iterdir())


def test_what_to_type_by_hand_is_quoted(capsys, tmp_path):
    run = tmp_path / "it's here"
    for through, words in (("local", []), ("slurm", ["sbatch"])):
        command = ["ssd-demo", "--system", "cpu", "--scheduler", through, "--output-dir", str(run), "--dry-run"]
        assert main(["launch", *command]) == 0
        by_hand = capsys.readouterr().out.splitlines()[-1].partition("Start:")[2]
        assert shlex.split(by_hand)[:-1] == words and Path(shlex.split(by_hand)[-1]).is_file()


def test_a_preflight_stands_before_the_ranks_and_its_flags_stay_with_the_launch(capsys, tmp_path, sbatch):
    run, text = tmp_path / "run", {}
    for start in ("srun", "torchrun", "mpirun"):
        words = (
            f"ssd-demo --system cpu --output-dir {run} --dry-run --scheduler slurm --launcher {start} --nodes 2 --preflight"
        )
        launched(f"{words} --pre-run-command sync --data {tmp_path}", capsys)
        text[start] = (run / "launch" / "job.sbatch").read_text().replace(" \\\n   ", "")
    for script in text.values():
        assert "#SBATCH --nodes=2\n" in script and "--preflight" not in script and "--nodes 2 --ranks 1" in script
        looks, trains = script.index("paceline.launch.preflight.node"), script.index("paceline train")
        assert looks < script.index("sh -c sync") < trains and f"--reads {tmp_path}" in script
    assert (
        re.search(r"paceline.launch.preflight.node .*--port \d+", text["torchrun"]) and "--master-port" not in text["srun"]
    )


@pytest.mark.parametrize("start", ["torchrun", "mpirun"])
def test_a_preflight_of_hosts_looks_at_those_that_train(capsys, tmp_path, start):
    run, hosts = tmp_path / "run", tmp_path / "hosts"
    hosts.write_text("h1\nh2\nh3\nh4\n")
    words = f"ssd-demo --system cpu --output-dir {run} --dry-run --scheduler hostfile --hostfile {hosts} --nodes 2 --launcher {start}"
    launched(f"{words} --preflight", capsys)
    script = (run / "launch" / "run.sh").read_text().replace(" \\\n   ", "")
    assert subprocess.run(["bash", "-n", str(run / "launch" / "run.sh")], check=False).returncode == 0
    if start == "torchrun":
        assert f"{run}/launch/preflight {sys.executable} h1 h2 || true" in script
        node = (run / "launch" / "preflight" / "node.sh").read_text().replace(" \\\n   ", "")
        assert '--names h1,h2 --number "$1"' in node
    else:
        assert (run / "launch" / "hostfile").read_text().count("\n") == 2
        assert f"--hostfile {run}/launch/hostfile -np 2 --map-by ppr:1:node" in script


def test_what_a_network_s_libraries_read_goes_over_ssh_and_into_no_container(capsys, tmp_path, monkeypatch):
    hosts, run = tmp_path / "hosts", tmp_path / "run"
    hosts.write_text("h1\nh2\n")
    for name in [name for name in os.environ if name == "LD_LIBRARY_PATH" or name.startswith(NETWORK_PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/amazon/efa/lib:/opt/aws-ofi-nccl/lib")
    monkeypatch.setenv("FI_EFA_FORK_SAFE", "1")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("UCX_ODD", "two\nlines")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    words = f"ssd-demo --system cpu --output-dir {run} --dry-run --scheduler hostfile --hostfile {hosts} --nodes 2"
    words += " --system.env NCCL_DEBUG=WARN"
    for start, name in (("torchrun", "node.sh"), ("mpirun", "run.sh")):
        launched(f"{words} --launcher {start}", capsys)
        text = (run / "launch" / name).read_text()
        assert "export LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/aws-ofi-nccl/lib " in text
        assert "export FI_EFA_FORK_SAFE=1 " in text and text.count("export NCCL_DEBUG=") == 1
        assert "AWS_SECRET" not in text and "UCX_ODD" not in text
        assert start == "torchrun" or "-x LD_LIBRARY_PATH" in text
    said = launched(f"{words} --container-runtime apptainer --container-image x.sif", capsys)
    check_text(said, "FI_EFA_FORK_SAFE, LD_LIBRARY_PATH", "container")
    assert "export LD_LIBRARY_PATH" not in (run / "launch" / "node.sh").read_text()


def test_mlperf_s_checker_judges_the_log_of_a_trial(resnet_run, capsys):
    asked = _parsed(Printer(), ["classify-demo"])[0]
    assert _checked(Printer(), asked, resnet_run.folder) is False  # it has reached no target
    assert f"{resnet_run.folder / 'mllog.txt'}: " in capsys.readouterr().out
    assert _checked(Printer(), asked, resnet_run.folder / "checkpoints") is None
