"""Videos: a frame's answer is its picture's own, the written video has all of them, and what was answered before a break is kept."""

from __future__ import annotations

import csv
import json
import os
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from messages import check_text
from PIL import Image
from tiny_runs import command, refused

from paceline.cli.printing import Printer
from paceline.inference import load
from paceline.inference.results import DetectionResult
from paceline.inference.video import Video

av = pytest.importorskip("av")
FRAMES, RATE = 24, 10


@pytest.fixture(scope="module")
def clip(ssd_run, tmp_path_factory) -> Path:
    """Rendered pictures that move by two pixels a frame; the index stands at the file's beginning, so a cut file opens."""
    file = tmp_path_factory.mktemp("clips") / "my clip.mp4"
    picture = np.asarray(Image.open(sorted((ssd_run.data / "val2017").iterdir())[0]).convert("RGB").resize((96, 64)))
    with av.open(str(file), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 96, 64, "yuv420p", 4_000_000
        for number in range(FRAMES):
            moved = np.ascontiguousarray(np.roll(picture, 2 * number, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
        container.mux(stream.encode())
    return file


def frames_of(file: Path) -> list[np.ndarray]:
    """By PyAV alone."""
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_each_n_th_frame_has_its_picture_s_own_answer_and_the_written_video_has_them_all(ssd_run, clip, tmp_path, capsys):
    out = tmp_path / "out"
    words = [
        "predict",
        ssd_run.folder,
        clip,
        "--output-dir",
        out,
        "--frame-stride",
        5,
        "--score-threshold",
        0,
        "--save-formats",
        "csv",
    ]
    said = command(capsys, *words)
    assert said.code == 0 and "5 frames in " in said.out and f"{clip} 0.50 s: " in said.out
    facts = json.loads((out / "predictions.json").read_text())
    assert [image["frame"] for image in facts["images"]] == [0, 5, 10, 15, 20]
    assert [image["seconds"] for image in facts["images"]] == [0, 0.5, 1, 1.5, 2]
    real, predictor = frames_of(clip), load(ssd_run.folder)
    for image in facts["images"]:
        alone = predictor.predict(real[image["frame"]])
        assert isinstance(alone, DetectionResult) and image["file"] == str(clip)
        # Objects with almost the same score may change places: each must be there, at any place.
        far = np.abs(np.array([row["bbox"] for row in image["detections"]])[:, None] - alone.boxes_xywh).max(axis=2)
        assert max(*far.min(axis=0), *far.min(axis=1)) < 0.02
    written = frames_of(out / "my clip.mp4")
    assert len(written) == 5 and all(frame.shape == (256, 384, 3) for frame in written)
    with av.open(str(out / "my clip.mp4")) as container:
        assert [round(frame.time, 3) for frame in container.decode(video=0)] == [0, 0.5, 1, 1.5, 2]
    with (out / "answers.csv").open(newline="") as file:
        assert {row["file"] for row in csv.DictReader(file)} == {f"frame_{number:06d}.jpg" for number in range(0, 24, 5)}
    assert command(capsys, *words, "--save-frames", "--tile-size", 64).code == 0  # replaces the video
    assert sorted(os.listdir(out)) == [
        "answers.csv",
        *(f"frame_{number:06d}.jpg" for number in range(0, 24, 5)),
        "predictions.json",
    ]


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_a_video_that_breaks_off_keeps_what_was_answered_and_says_where(share, resnet_run, clip, tmp_path, capsys):
    cut, out = tmp_path / "cut.mp4", tmp_path / "out"
    cut.write_bytes(clip.read_bytes()[: int(clip.stat().st_size * share)])
    said = command(capsys, "predict", resnet_run.folder, cut, "--output-dir", out)
    facts = json.loads((out / "predictions.json").read_text())
    (broken,) = facts["skipped"]
    answered = len(facts["images"])
    assert said.code == 1 and 0 < answered < FRAMES and len(frames_of(out / "cut.mp4")) == answered
    assert broken["file"] == str(cut) and check_text(broken["reason"], f"{answered} frames")
    assert broken["reason"] in said.out and "Traceback" not in said.err
    assert command(capsys, "predict", resnet_run.folder, clip, "--output-dir", out, "--quiet").code == 0
    assert not (out / "cut.mp4").exists()


def test_what_is_no_video_is_refused_and_nothing_is_written(resnet_run, clip, tmp_path, capsys):
    out = tmp_path / "out"

    def refuse(file: object, *needles: str) -> None:
        refused(command(capsys, "predict", resnet_run.folder, file, "--output-dir", out), *needles)
        assert not out.exists()

    (tmp_path / "text.mp4").write_text("no video")
    refuse(tmp_path / "text.mp4", "text.mp4", "readable video")
    refuse(tmp_path / "gone.mkv", "gone.mkv", "No such file")
    os.mkfifo(tmp_path / "pipe.mp4")
    refuse(tmp_path / "pipe.mp4", "pipe.mp4", "named pipe")
    (tmp_path / "head.mp4").write_bytes(clip.read_bytes()[:600])
    refuse(tmp_path / "head.mp4", "head.mp4", "readable video")
    # Playlists lead elsewhere: what they name is not opened.
    (tmp_path / "list.ts").write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:2.4,\n{clip}\n#EXT-X-ENDLIST\n")
    refuse(tmp_path / "list.ts", "list.ts")
    (tmp_path / "concat.mp4").write_text(f"ffconcat version 1.0\nfile '{clip}'\n")
    refuse(tmp_path / "concat.mp4", "concat.mp4")
    refuse("camera:77", "camera:77", "opening the camera")


def test_flags_that_fit_no_video_or_no_photo_are_refused(ssd_run, clip, tmp_path, capsys):
    photo = sorted((ssd_run.data / "val2017").iterdir())[0]
    words = ["predict", ssd_run.folder, "--output-dir", tmp_path / "out"]
    refused(command(capsys, *words, clip, photo), str(clip))
    refused(command(capsys, *words, clip, "--frame-stride", 0), "--frame-stride 0")
    refused(command(capsys, *words, clip, "--save-formats", "yolo"), "--save-formats yolo", "frames")
    refused(command(capsys, *words, photo, "--frame-stride", 2), "--frame-stride")
    refused(command(capsys, *words, photo, "--save-frames"), "--save-frames")


def test_without_pyav_the_command_that_installs_it_is_named(resnet_run, clip, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    refused(command(capsys, "predict", resnet_run.folder, clip, "--output-dir", tmp_path / "out"), "pip install 'av>=14.1'")


def test_frames_are_turned_as_the_video_notes(clip, tmp_path):
    content = bytearray(clip.read_bytes())
    at = content.index(b"tkhd") + 4 + 40  # the matrix of the track's header, version 0: 16.16 fixed point
    turned = (0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)  # a quarter turn clockwise
    content[at : at + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in turned)
    (tmp_path / "turned.mp4").write_bytes(content)
    with closing(Video(tmp_path / "turned.mp4")) as video:
        first = next(iter(video))
    assert (first.pixels == np.rot90(frames_of(clip)[0], -1)).all()


def test_few_frames_are_held_however_long_the_video_is(resnet_run, clip):
    predictor = load(resnet_run.folder)
    pulled = taken = most = 0

    def pixels():
        nonlocal pulled
        for _ in range(6):  # 144 frames
            with closing(Video(clip)) as video:
                for frame in video:
                    pulled += 1
                    yield frame.pixels

    for _ in predictor.predict_iter(pixels(), batch=4):
        taken += 1
        most = max(most, pulled - taken)
    assert taken == 6 * FRAMES and most <= 20


def test_ctrl_c_ends_a_video_with_what_was_answered(resnet_run, clip, tmp_path, capsys, monkeypatch):
    out, lines = tmp_path / "out", []

    def interrupted(_: Printer, text: object) -> None:
        lines.append(str(text))
        if len(lines) == 15:
            raise KeyboardInterrupt

    monkeypatch.setattr(Printer, "say", interrupted)
    assert command(capsys, "predict", resnet_run.folder, clip, "--output-dir", out).code == 75
    answered = len(json.loads((out / "predictions.json").read_text())["images"])
    assert 0 < answered < 15 and len(frames_of(out / "my clip.mp4")) == answered and "not finished" in lines[-1]
