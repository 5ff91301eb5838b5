"""Runs that cannot go on: each says why in a sentence, on every rank, and none ends with the exit code of one that went well."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from by_night import ONE_MORE
from messages import check_line, check_text
from small_run import last_event, said, step_reached, wait_until
from zygote import Ended

# The time after which ranks say that another is lost counts here.
pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]

FLAGS = "--save-every 2 --log-every 1"
Troubled = Callable[..., list[Ended]]


@pytest.fixture
def troubled(trainer, tmp_path) -> Troubled:
    """Trains into tmp_path/run with what RUN.trouble orders; -> how the ranks ended."""

    def run(order: str, *, ranks: int = 1, flags: str = FLAGS) -> list[Ended]:
        if order:
            (tmp_path / "run.trouble").write_text(order)
        else:
            (tmp_path / "run.trouble").unlink()
        return trainer.run(trainer.train(tmp_path / "run", flags, recipe="troubled"), ranks=ranks)

    return run


@pytest.mark.parametrize(
    ("ranks", "order", "thread"),
    [
        pytest.param(1, "leave read", "loader-0", marks=ONE_MORE),
        (2, "leave read", "loader-0"),
        (1, "leave score", "paceline-scoring"),
    ],
)
def test_a_thread_that_exits_is_a_failure_by_name(troubled, tmp_path, ranks, order, thread):
    ended = troubled(order, ranks=ranks)
    assert [rank.code for rank in ended] == [3] * ranks, said(ended)
    failure = f"RuntimeError: thread {thread} was ended by SystemExit: 0"
    assert all(failure in rank.text for rank in ended), said(ended)
    assert last_event(tmp_path / "run")["status"] == "failed"
    if ranks == 2:
        assert check_line(ended[0].text, "rank 0", "rank 1 (of 2)", failure)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=ONE_MORE), 2])
def test_out_of_memory_is_a_sentence_whose_advice_goes_on(troubled, tmp_path, ranks):
    ended = troubled("memory", ranks=ranks)
    assert [rank.code for rank in ended] == [3] * ranks, said(ended)
    images, fewer = 12 // ranks, 6 // ranks
    for rank in ended:
        assert check_line(rank.text, "memory", f"{images} images") and "Traceback" not in rank.text
    end = last_event(tmp_path / "run")
    assert end["status"] == "failed" and "enough memory" in end["reason"]
    if ranks == 1:
        advice = f"--system.micro-batch-size {fewer}"
        assert check_text(ended[0].text, advice), said(ended)
        again = troubled("", ranks=1, flags=f"{FLAGS} {advice}")
        assert again[0].code == 0 and "step-00000" in again[0].text, said(again)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=ONE_MORE), 2])
def test_no_more_memory_for_threads_ends_every_rank_with_a_reason(troubled, ranks):
    ended = troubled("addresses", ranks=ranks, flags=FLAGS)
    assert [rank.code for rank in ended] == [3] * ranks, said(ended)
    words = ("rejected a new thread", "not enough memory", "a library ended this process")
    assert any(text in ended[-1].text for text in words), said(ended)
    assert ranks == 1 or check_line(ended[0].text, "rank 0", "rank 1 (of 2)"), said(ended)


def test_too_few_addresses_are_refused_before_the_first_step(troubled, tmp_path):
    ended = troubled("addresses at once", ranks=2)
    assert [rank.code for rank in ended] == [2, 2], said(ended)
    assert "ulimit -v" in ended[1].text and "Traceback" not in said(ended)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=ONE_MORE), 2])
def test_a_run_folder_that_is_deleted_ends_the_run_with_a_sentence(trainer, tmp_path, ranks):
    run = tmp_path / "run"
    job = trainer.start(trainer.train(run, f"{FLAGS} --max-images 36000"), ranks=ranks)
    wait_until(lambda: step_reached(run) >= 3, "step 3")
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)
    ended = job.wait()
    assert [rank.code for rank in ended] == [2] * ranks, said(ended)
    assert check_text(ended[0].text, "removed", "folder"), said(ended)
    assert all("No such file or directory" in rank.text for rank in ended), said(ended)
    assert "Traceback" not in said(ended)


def test_a_recipe_file_that_exits_is_refused(trainer, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("import sys\n\n\ndef mine():\n    sys.exit(0)\n")
    command = trainer.train(tmp_path / "run")
    for text, wanted in (
        (own.read_text(), "calling it failed (SystemExit: 0)"),
        ("raise SystemExit(0)", "failed to import"),
    ):
        own.write_text(text)
        (ended,) = trainer.run([command[0], f"{own}:mine", *command[2:]])
        assert ended.code == 2 and wanted in ended.text and "Traceback" not in ended.text, ended
