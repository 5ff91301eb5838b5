"""Ranks on cores of their own, every thread of each, under each launcher; and ranks that share a copy of the data."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from messages import check_text
from run_files import without_card
from small_run import last_event, mpirun, said, step_reached, tensor_files, torchrun, wait_until

from paceline._utils.platform import get_allowed_cpus
from paceline.distributed.device.topology import parse_cpu_list

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]
two_cores = pytest.mark.skipif(len(get_allowed_cpus()) < 2, reason="one core cannot be divided between two ranks")

FLAGS = "--max-steps 6 --eval-every 0 --log-every 1"


def threads_of(pid: int) -> dict[str, tuple[int, ...]]:
    """Name and number of each thread of a process -> what the kernel lets it run on."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        found[f"{status['Name'].strip()} {task.name}"] = parse_cpu_list(status["Cpus_allowed_list"])
    return found


@pytest.fixture(scope="module")
def unbound(trainer) -> Path:
    """Two ranks that may run anywhere."""
    return trainer.finished(trainer.folder / "unbound", FLAGS, ranks=2)


@two_cores
def test_main_and_loader_threads_of_two_ranks_stay_on_the_cores_that_run_json_names(trainer, unbound, tmp_path):
    run = tmp_path / "run"
    long = "--input.eval-crop-size 224 --input.eval-resize-size 240 --max-val-images 0"
    job = trainer.start(trainer.train(run, f"{FLAGS} --system.cpu-bind exclusive {long}"), ranks=2)
    wait_until(lambda: step_reached(run) >= 3, "step 3")
    job.send(signal.SIGSTOP)
    threads = [threads_of(pid) for pid in job.pids]
    job.send(signal.SIGCONT)
    ended = job.wait()
    assert [rank.code for rank in ended] == [0, 0], said(ended)
    facts = json.loads((run / "run.json").read_text())
    cores = [parse_cpu_list(text) for text in facts["cpu_binding"]["cores"]]
    assert [set(each.values()) for each in threads] == [{cores[0]}, {cores[1]}], threads
    assert all(len(each) > 3 for each in threads)  # not the main thread alone
    assert not set(cores[0]) & set(cores[1]) and {*cores[0], *cores[1]} == get_allowed_cpus()
    assert "CPU binding (exclusive): rank 0 on" in ended[0].text and "CPU binding (" not in ended[1].text
    # The cards tell two evaluation sizes.
    placed, free = ({name: without_card(each) for name, each in tensor_files(one).items()} for one in (run, unbound))
    assert placed == free
    assert "cpu_binding" not in json.loads((unbound / "run.json").read_text())


@pytest.mark.nightly("two more live ranks")
def test_more_ranks_than_cores_are_refused_in_a_line_and_leave_nothing(trainer, tmp_path):
    cores = get_allowed_cpus()
    if len(cores) > 3:
        pytest.skip("as many ranks would take long")
    ranks = len(cores) + 1
    ended = trainer.refused(tmp_path / "run", f"{FLAGS} --system.cpu-bind exclusive", ranks=ranks)
    check_text(said(ended), "--system.cpu-bind exclusive", f"{ranks} ranks", f"{len(cores)} are")


@two_cores
@pytest.mark.nightly("two more live ranks")
@pytest.mark.parametrize("launcher, kind", [(torchrun, "torchrun"), (mpirun, "openmpi")], ids=["torchrun", "mpirun"])
def test_it_holds_under_a_launcher_also_one_that_binds_ranks_itself(
    trainer, unbound, tmp_path, need_program, launcher, kind
):
    if kind == "openmpi":
        need_program("mpirun", "openmpi-bin")  # binds two ranks to a core each, unasked
    run = tmp_path / "run"
    done = trainer.launched(launcher(2), trainer.train(run, f"{FLAGS} --system.cpu-bind exclusive"))
    assert done.returncode == 0, done.stdout
    facts = json.loads((run / "run.json").read_text())
    assert facts["launcher"] == kind and last_event(run)["status"] == "stopped_early"
    one, other = (set(parse_cpu_list(text)) for text in facts["cpu_binding"]["cores"])
    assert one and other and not one & other
    assert tensor_files(run) == tensor_files(unbound)


def test_two_ranks_of_a_node_share_one_copy_and_the_bits_stay(trainer, unbound, tmp_path):
    run, disk = tmp_path / "run", tmp_path / "disk"
    ended = trainer.ended_well(trainer.train(run, f"{FLAGS} --copy-data-to {disk}"), ranks=2)
    # 51 to train on, and the 21 that --max-val-images leaves to score.
    assert sum(path.is_file() for path in disk.rglob("near/**/*")) == 72
    (line,) = [line for rank in ended for line in rank.text.splitlines() if line.startswith("data in")]
    assert f"data in {disk}: copied 72 files" in line
    assert tensor_files(run) == tensor_files(unbound)
    assert json.loads((run / "run.json").read_text())["data"] == json.loads((unbound / "run.json").read_text())["data"]


@pytest.mark.nightly("two more live ranks")
def test_a_folder_that_cannot_be_made_ends_all_ranks_in_a_line(trainer, tmp_path):
    (tmp_path / "file").write_text("")
    ended = trainer.refused(tmp_path / "run", f"{FLAGS} --copy-data-to {tmp_path}/file")
    check_text(said(ended), "--copy-data-to", f"{tmp_path}/file")
