"""TensorBoard shows the numbers of the events, and after a resume only those that still hold."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from pathlib import Path

from paceline.training.logging.trackers import TensorBoard


def train(step: int, loss: float) -> dict:
    facts = {"loss": loss, "lr": 0.1, "images_per_second": 9.0, "data_wait": 0.0, "samples": step * 8, "note": "text"}
    return {"event": "train", "step": step, "epoch": step / 10, "seconds": 1.0, **facts}


def evaluation(step: int, top1: float) -> dict:
    return {"event": "eval", "step": step, "epoch": 1.0, "seconds": 1.0, "images": 10, "eval_seconds": 1.0, "top1": top1}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(point.step, round(point.value, 4)) for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_train_and_eval_numbers_are_shown_by_step(tmp_path):
    board = TensorBoard(tmp_path)
    for event in (train(10, 2.0), evaluation(10, 0.5), {"event": "checkpoint", "step": 10, "name": "x"}, train(20, 1.0)):
        board.write(event)
    board.close()
    board.close()
    shown = scalars(tmp_path)
    assert set(shown) == {"train/loss", "train/lr", "train/images_per_second", "train/data_wait", "eval/top1"}
    assert shown["train/loss"] == [(10, 2.0), (20, 1.0)]
    assert shown["eval/top1"] == [(10, 0.5)]


def test_what_a_resumed_run_does_again_is_shown_once(tmp_path):
    first = TensorBoard(tmp_path)
    for event in (train(10, 2.0), train(20, 9.0), train(30, 9.0)):
        first.write(event)
    first.close()
    # TensorBoard reads a folder's files by name, which begins with the second in which each was opened.
    opened = int(time.time())
    while int(time.time()) == opened:
        time.sleep(0.01)
    second = TensorBoard(tmp_path, purge_step=10)
    for event in (train(20, 1.0), train(30, 0.5)):
        second.write(event)
    second.close()
    assert scalars(tmp_path)["train/loss"] == [(10, 2.0), (20, 1.0), (30, 0.5)]


def test_importing_the_module_imports_neither_torch_nor_tensorboard():
    modules = ", ".join(f"paceline.training.logging.{name}" for name in ("trackers", "console", "mllog"))
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "tensorboard", "rich", "mlperf_logging"} & set(loaded)
