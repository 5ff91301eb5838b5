"""File systems without symbolic links (vfat, exFAT, some FUSE) or without locks (NFS and Lustre as some mount them): runs go on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from by_night import ONE_MORE
from tiny_runs import command, refused, train

from paceline._utils import journal
from paceline.training.checkpoint.layout import BEST, LAST, link_step, list_steps

pytestmark = pytest.mark.usefixtures("no_charts")

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


def by_number(*numbers: int) -> list[object]:
    """Parameters: by day the first of the numbers."""
    return [
        pytest.param(number, id=errno.errorcode[number], marks=ONE_MORE if place else ())
        for place, number in enumerate(numbers)
    ]


@pytest.fixture(params=by_number(*NO_LINKS))
def no_links(request, monkeypatch) -> None:
    def refuse(path, target, target_is_directory=False):
        raise OSError(request.param, os.strerror(request.param), str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)


def test_without_symbolic_links_a_run_is_trained_resumed_scored_and_started_from(no_links, class_photos, tmp_path, capsys):
    run = tmp_path / "run"
    assert train(capsys, class_photos, run, steps=2).code == 0
    assert train(capsys, class_photos, run, "--keep-checkpoints", 1, steps=4).code == 0
    checkpoints = run / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir() if path.name.startswith(".")) == []
    (last,) = [step for step in list_steps(checkpoints) if step == link_step(checkpoints, LAST)]
    best = link_step(checkpoints, BEST)
    assert last == 4 and best in list_steps(checkpoints) and len(list_steps(checkpoints)) <= 2
    assert (checkpoints / LAST).read_text() == "step-000004\n"
    scored = {}
    for which in ("last", "best", "step-4"):
        said = command(capsys, "eval", run, "--checkpoint", which, "--json", "--no-confidence-intervals")
        assert said.code == 0, said
        scored[which] = json.loads(said.out)
    assert scored["last"]["step"] == 4 and scored["best"]["step"] == best
    for weights in (run, checkpoints / "last"):
        out = tmp_path / f"from-{weights.name}"
        said = train(capsys, class_photos, out, "--weights", weights, steps=1)
        assert said.code == 0 and "tensors used" in said.out, said


@pytest.mark.parametrize("text", ["", "step-000099", "../step-000002", "step-000002/..", "\0", "x" * 1000])
def test_a_file_in_place_of_a_link_that_names_no_checkpoint_here_is_none(tmp_path, text):
    (tmp_path / "step-000002").mkdir()
    (tmp_path / LAST).write_text(text)
    assert link_step(tmp_path, LAST) is None
    (tmp_path / LAST).write_text("step-000002\n")
    assert link_step(tmp_path, LAST) == 2


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@pytest.mark.parametrize("number", by_number(*NO_LOCKS))
def test_without_locks_a_run_is_trained_with_a_warning(number, class_photos, tmp_path, capsys, monkeypatch):
    def refuse(descriptor, **_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(journal, "flock", refuse)
    said = train(capsys, class_photos, tmp_path / "run", steps=1)
    assert said.code == 0 and "support locks" in said.out + said.err, said
    assert train(capsys, class_photos, tmp_path / "run", steps=2).code == 0
    packed = tmp_path / "packed"
    said = command(capsys, "data", "pack", class_photos, "--format", "webdataset", "--output-dir", packed)
    assert said.code == 0 and any(packed.rglob("*.tar")), said


def test_another_problem_with_a_lock_is_still_an_error(class_photos, tmp_path, capsys, monkeypatch):
    def refuse(descriptor, **_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(journal, "flock", refuse)
    refused(train(capsys, class_photos, tmp_path / "run", steps=1), "(Input/output error)")
