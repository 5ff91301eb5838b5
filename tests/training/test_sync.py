"""A run's folder mirrored to a bucket: what lies there at every moment, what is brought, what is refused, what fails meanwhile."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from messages import check_text, raises
from run_files import events_of, tensor_files
from tiny_runs import refused, train, without_report

from paceline._utils.errors import CheckpointError, PacelineError, RecipeError
from paceline._utils.reporter import SILENT, Lines
from paceline.config.run import RunOptions, check_run_options
from paceline.data.storage.object_store import BucketFolder
from paceline.training.checkpoint.background import CheckpointWriter
from paceline.training.checkpoint.layout import link_step, list_steps
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.checkpoint.write import Snapshot
from paceline.training.run_dir.folder import _download_here
from paceline.training.run_dir.remote import open_remote_folder
from paceline.training.run_dir.sync import FolderSync


class Cut(BucketFolder):
    """A bucket that takes so many requests that change it, and no more."""

    left = 0

    def _one_less(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "cut off")

    def write(self, name: str, content: Any, *, new: bool = False) -> bool:
        self._one_less()
        return super().write(name, content, new=new)

    def delete(self, names: Any) -> None:
        for name in names:
            self._one_less()
            super().delete([name])


def mirror_of(bucket: Path | str, run: Path) -> FolderSync:
    """A mirror of the run in `run`, taken up as a command would."""
    run.mkdir(exist_ok=True)
    url = bucket if isinstance(bucket, str) else f"file://{bucket}"
    return FolderSync(open_remote_folder(url, run, SILENT), run, name="toy")


def train_toy(run: Path, mirror: FolderSync, steps: range, *, best: int) -> dict[str, Any]:
    """Write checkpoints and events as a run does, and wait for the mirror after each; -> what it says in the end."""
    (run / "run.json").write_text("{}")
    writer = CheckpointWriter(run / "checkpoints", keep=1)
    if there := list_steps(run / "checkpoints"):
        writer.resume(there[-1], best)
    for step in steps:
        with (run / "events.jsonl").open("a") as events:
            events.write(f"{step}\n")
        writer.submit(step, Snapshot({"model": {"w": torch.full((1000,), float(step))}}, {"step": step}))
        writer.evaluated(step, best=step == best)
        writer.wait()
        facts = mirror.catch_up(20)
    return facts


def test_cut_off_at_any_request_the_newest_checkpoint_there_is_whole_and_its_events_and_best_are_with_it(tmp_path):
    brought = []
    for number in range(60):
        run, empty, bucket = (tmp_path / f"{name}-{number}" for name in ("run", "empty", "bucket"))
        mirror = mirror_of(bucket, run)
        mirror._bucket = cut = Cut(f"file://{bucket}")
        cut.left = number
        facts = train_toy(run, mirror, range(1, 4), best=1)
        empty.mkdir()
        open_remote_folder(f"file://{bucket}", empty, SILENT)
        there = list_steps(empty / "checkpoints")
        brought.append(there)
        for step in there:
            assert load_checkpoint(empty / f"checkpoints/step-{step:06d}").facts == {"step": step}
        if there:
            assert str(there[-1]) in (empty / "events.jsonl").read_text().split(), number
            assert there[0] == 1, (number, there)  # the best, which retention has kept
        if "missing" not in facts:
            break
    assert brought[-1] == [1, 3] and brought[0] == [] and [1] in brought and [1, 2] in brought


def test_what_retention_deletes_here_goes_there_and_nothing_of_anybody_else(tmp_path):
    bucket = tmp_path / "bucket"
    mirror = mirror_of(bucket, tmp_path / "run")
    train_toy(tmp_path / "run", mirror, range(1, 3), best=1)
    own = [bucket / "notes.txt", bucket / "checkpoints/step-000001/notes.md", bucket / "checkpoints/mine/index.json"]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    other = mirror_of(bucket, tmp_path / "run")  # takes up what lies there
    train_toy(tmp_path / "run", other, range(3, 6), best=4)
    assert list_steps(tmp_path / "run/checkpoints") == [4, 5] and all(path.exists() for path in own)
    assert {path.parent.name for path in bucket.rglob("*.safetensors")} == {"step-000004", "step-000005"}
    assert (bucket / "checkpoints/best").read_text() == "step-000004"


def test_a_later_process_takes_over_and_the_earlier_one_keeps_still(tmp_path):
    bucket = tmp_path / "bucket"
    first = mirror_of(bucket, tmp_path / "first")
    train_toy(tmp_path / "first", first, range(1, 3), best=1)
    second = mirror_of(bucket, tmp_path / "second")
    facts = train_toy(tmp_path / "first", first, range(3, 4), best=1)
    assert (
        check_text(facts["missing"], "another process", tmp_path / "second")
        and str(tmp_path / "second") in facts["missing"]
    )
    assert len(first.warnings()) == 1 and first.warnings() == []
    assert sorted(path.parent.name for path in bucket.rglob("index.json")) == ["step-000001", "step-000002"]
    assert "missing" not in train_toy(tmp_path / "second", second, range(3, 4), best=1)


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_brought(tmp_path, harm):
    bucket, said = tmp_path / "bucket", []
    mirror = mirror_of(bucket, tmp_path / "run")
    train_toy(tmp_path / "run", mirror, range(1, 4), best=2)
    path = bucket / "checkpoints/step-000003/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content if harm == "flip" else content[:-9])
    if harm == "remove":
        path.unlink()
    (tmp_path / "empty").mkdir()
    open_remote_folder(f"file://{bucket}", tmp_path / "empty", Lines(said.append))
    assert list_steps(tmp_path / "empty/checkpoints") == [2] and not list((tmp_path / "empty/checkpoints").glob(".*"))
    assert "skipping step-000003" in said[0] and "damaged" in said[0] and str(path) in said[0]
    assert check_text(said[1], f"file://{bucket}", "step-000002")
    again = mirror_of(bucket, tmp_path / "empty")  # trained anew, it takes the damaged one's place
    train_toy(tmp_path / "empty", again, range(3, 4), best=2)
    shutil.rmtree(tmp_path / "run")
    mirror_of(bucket, tmp_path / "run")
    assert list_steps(tmp_path / "run/checkpoints") == [2, 3]


def test_where_all_are_damaged_nothing_begins_anew_in_silence(tmp_path):
    mirror = mirror_of(tmp_path / "bucket", tmp_path / "run")
    train_toy(tmp_path / "run", mirror, range(1, 3), best=1)
    for path in (tmp_path / "bucket").rglob("model.safetensors"):
        path.write_bytes(b"")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"damaged(.|\n)*step-000002(.|\n)*step-000001"):
        open_remote_folder(f"file://{tmp_path}/bucket", tmp_path / "empty", SILENT)


def test_a_node_that_does_not_see_the_folder_brings_the_checkpoint_that_rank_0_goes_on_from(tmp_path):
    mirror = mirror_of(tmp_path / "bucket", tmp_path / "run")
    train_toy(tmp_path / "run", mirror, range(1, 4), best=1)
    node = tmp_path / "node/run/checkpoints"
    for step in (1, 1, 3):
        _download_here(f"file://{tmp_path}/bucket", node, step)
    assert list_steps(node) == [1, 3] and load_checkpoint(node / "step-000003").facts == {"step": 3}
    with pytest.raises(CheckpointError, match=r"step-000002: .*not found"):
        _download_here(f"file://{tmp_path}/bucket", node, 2)


def test_another_run_and_somebody_elses_objects_are_refused_by_name(tmp_path):
    mirror_of(tmp_path / "bucket", tmp_path / "first")
    (tmp_path / "second").mkdir()
    (tmp_path / "second/run.json").write_text("{}")
    with raises(PacelineError, "another run", "toy", "first"):
        open_remote_folder(f"file://{tmp_path}/bucket", tmp_path / "second", SILENT)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"cat")
    with raises(PacelineError, "cat.jpg", "run"):
        open_remote_folder(f"file://{tmp_path}/photos", tmp_path / "third", SILENT)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


class Refusing(BaseHTTPRequestHandler):
    """A bucket in which one finds nothing, and that takes as many objects as it is told; then it answers 403."""

    takes = 0

    def answer(self, code: int, body: bytes = b"") -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        listing = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
        self.answer(*(200, listing) if "list-type" in self.path else (404, b""))

    def do_PUT(self) -> None:
        type(self).takes -= 1
        self.answer(200 if type(self).takes >= 0 else 403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing(monkeypatch) -> Iterator[type[Refusing]]:
    class Own(Refusing):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in {
            **{"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_REGION": "us-east-1"},
            **{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "PACELINE_STORE_PATIENCE": "1"},
        }.items():
            monkeypatch.setenv(name, value)
        yield Own
        server.shutdown()


def test_a_bucket_that_refuses_is_refused_before_training(tmp_path, capsys, class_photos, refusing):
    said = train(capsys, class_photos, tmp_path / "run", "--sync-to", "s3://b/run")
    refused(said, "--sync-to s3://b/run ... (403)", lines=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", ["b/run", "s3://b", "https://b/run", "s3://b/run?x", "s3://b/spot one"])
def test_what_is_no_folder_of_a_bucket_is_refused(wrong):
    with raises(RecipeError, "--sync-to", "bucket"):
        check_run_options(RunOptions(sync_to=wrong))


def test_a_bucket_that_refuses_later_stops_no_training_and_the_end_says_what_is_not_there(
    tmp_path, capsys, monkeypatch, class_photos, refusing
):
    without_report(monkeypatch)
    refusing.takes = 1
    said = train(capsys, class_photos, tmp_path / "run", "--sync-to", "s3://b/run", steps=4)
    assert said.code == 0
    end = events_of(tmp_path / "run", "end")[0]["mirror"]
    assert end["missing"].startswith("step-000004: no permission (403)") and end["failures"] >= 1
    lines = [line for line in (said.out + said.err).splitlines() if "--sync-to" in line]
    assert len(lines) == 1 and check_text(lines[0], "--sync-to", "training")
    assert "not uploaded: step-000004" in said.out + said.err


def test_an_empty_folder_goes_on_from_the_bucket_bit_for_bit(tmp_path, capsys, monkeypatch, class_photos, s3_bucket):
    without_report(monkeypatch)
    often = ("--save-every", "2", "--eval-every", "4")
    assert train(capsys, class_photos, tmp_path / "whole", *often, steps=8).code == 0
    mirrored = ("--sync-to", s3_bucket.url("runs/spot"), *often)
    assert train(capsys, class_photos, tmp_path / "a", *mirrored, steps=4).code == 0
    said = train(capsys, class_photos, tmp_path / "b", *mirrored, steps=8)
    assert said.code == 0 and f"downloaded from {mirrored[1]}: step-000004" in said.out, said
    assert tensor_files(tmp_path / "b") == tensor_files(tmp_path / "whole")
    assert link_step(tmp_path / "b/checkpoints", "best") == link_step(tmp_path / "whole/checkpoints", "best")
    facts = [[event["top1"] for event in events_of(tmp_path / run, "eval")] for run in ("b", "whole")]
    assert facts[0] == facts[1] and len(facts[0]) == 2
    assert len(list((tmp_path / "b/predictions").iterdir())) == 2
    # The run's own folder goes on too, from what is newer there; a run of another network is refused, and its folder stays empty.
    said = train(capsys, class_photos, tmp_path / "a", *mirrored, steps=10)
    assert said.code == 0 and "downloaded" in said.out and "step-000008" in said.out
    said = train(capsys, class_photos, tmp_path / "c", *mirrored, "--model.depth", "18", steps=12)
    refused(said, "checkpoint", "model.depth", lines=12)
    assert not (tmp_path / "c").exists()
    assert "sync_to" in json.loads((tmp_path / "a/run.json").read_text())["options"]
