"""One checkpoint on disk: what goes in comes out, whole or not at all, and damage is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from messages import check_line, check_text, raises

from paceline._utils.errors import CheckpointError
from paceline._utils.reporter import SILENT, Lines
from paceline._utils.safe_read import SEAL, with_checksum
from paceline.training.checkpoint import read, write
from paceline.training.checkpoint.layout import list_steps, step_name
from paceline.training.checkpoint.read import find_checkpoint, find_newest_valid, load_checkpoint
from paceline.training.checkpoint.write import Snapshot, are_dense, count_tensor_bytes, save_checkpoint, unusual_strides
from paceline.training.factory import find_weights_file
from paceline.training.resume import check_same_recipe


def snapshot(seed: int = 0, **facts) -> Snapshot:
    generator = torch.Generator().manual_seed(seed)
    model = {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator).to(memory_format=torch.channels_last),
        "point.weight": torch.randn(4, 3, 1, 1, generator=generator).to(memory_format=torch.channels_last),
        "fc.weight": torch.randn(5, 7, generator=generator),
        "fc.turned": torch.randn(5, 7, generator=generator).t(),
        "bn.num_batches_tracked": torch.tensor(3),
        "half": torch.randn(3, generator=generator).half(),
        "brain": torch.randn(3, generator=generator).bfloat16(),
        "mask": torch.tensor([True, False, True]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "nothing": torch.zeros(0, 4),
    }
    momentum = {"fc.weight": torch.randn(5, 7, generator=generator)}
    return Snapshot({"model": model, "optimizer": momentum}, {"seed": 7, "best": {"top1": 0.5}, **facts})


def assert_equal(one: Snapshot, other: Snapshot) -> None:
    assert one.facts == other.facts
    assert one.tensors.keys() == other.tensors.keys()
    for group, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[group].keys()
        for name, tensor in tensors.items():
            assert tensor.dtype == other.tensors[group][name].dtype and torch.equal(tensor, other.tensors[group][name])


def test_what_was_saved_comes_back_bit_for_bit_with_its_strides(tmp_path):
    saved = snapshot()
    path = save_checkpoint(tmp_path, 7, saved)
    assert path == tmp_path / "step-000007"
    assert json.loads((path / "index.json").read_text())["format"] == 1  # of every checkpoint that was ever written
    loaded = load_checkpoint(path)
    assert_equal(saved, loaded)
    for name, tensor in saved.tensors["model"].items():
        if tensor.numel():
            assert loaded.tensors["model"][name].stride() == tensor.stride(), name
    conv = loaded.tensors["model"]["conv.weight"]
    assert torch.equal(conv.norm(), saved.tensors["model"]["conv.weight"].norm())


def test_the_safetensors_library_reads_the_files(tmp_path):
    saved = snapshot()
    path = save_checkpoint(tmp_path, 7, saved)
    loaded = safetensors.torch.load_file(path / "model.safetensors")
    assert loaded.keys() == saved.tensors["model"].keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor, saved.tensors["model"][name])


def test_a_strided_part_of_a_tensor_is_saved_as_its_values():
    whole = torch.arange(12.0).reshape(3, 4)
    assert unusual_strides(whole[:, :2]) is None
    part = b"".join(bytes(chunk) for chunk in write.safetensors_chunks({"x": whole[:, :2]}))
    assert torch.equal(safetensors.torch.load(part)["x"], whole[:, :2])


def test_equal_state_gives_equal_bytes_whatever_the_clock_and_the_order(tmp_path):
    first, second = snapshot(seconds=10.0), snapshot(seconds=11.5)
    turned = {group: dict(reversed(tensors.items())) for group, tensors in reversed(second.tensors.items())}
    one = save_checkpoint(tmp_path / "a", 7, first)
    two = save_checkpoint(tmp_path / "b", 7, Snapshot(turned, second.facts))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert (one / "state.json").read_bytes() != (two / "state.json").read_bytes()


def test_sizes_are_the_data_alone():
    assert count_tensor_bytes([torch.zeros(3, 4), torch.zeros(5, dtype=torch.int64), torch.zeros(0)]) == 3 * 4 * 4 + 5 * 8


@pytest.mark.parametrize("what", ["damaged", "a file", "a dangling link"])
def test_what_has_a_checkpoint_s_name_makes_room_for_it(tmp_path, what):
    place = tmp_path / "step-000007"
    if what == "damaged":
        damage(save_checkpoint(tmp_path, 7, snapshot(0)), "flipped")
    elif what == "a file":
        place.write_text("x")
    else:
        place.symlink_to("nowhere")
    save_checkpoint(tmp_path, 7, snapshot(1))
    assert_equal(load_checkpoint(place), snapshot(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000007"]


# Every call that changes the disk; the child is killed before the k-th of them.
CALLS = ("mkdir", "fsync", "rename", "open", "rmdir", "unlink")


def killed_before_call(number: int, folder: Path) -> bool:
    """Save step 9, and 7 again, in a child that kills itself before its `number`-th call; False: it had fewer."""
    pid = os.fork()
    if pid == 0:
        left = number

        def deadly(original):
            def call(*arguments, **named):
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return original(*arguments, **named)

            return call

        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))
        write.save_checkpoint.__globals__["open"] = deadly(open)
        save_checkpoint(folder, 9, snapshot(9))
        save_checkpoint(folder, 7, snapshot(2))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside torch's idle threads
def test_killed_at_any_moment_every_visible_checkpoint_is_whole(tmp_path):
    number, seen = 0, set()
    while True:
        folder = tmp_path / str(number)
        save_checkpoint(folder, 7, snapshot(1))
        if not killed_before_call(number, folder):
            break
        steps = list_steps(folder)
        assert steps in ([7], [7, 9], [9])
        state = []
        for step in steps:
            loaded = load_checkpoint(folder / step_name(step))  # raises if it is not whole
            expected = {9: (9,), 7: (1, 2)}[step]
            matching = [s for s in expected if torch.equal(loaded.tensors["model"]["fc.weight"], fc_weight(s))]
            state.append((step, matching))
            assert len(matching) == 1
        seen.add(str(state))
        number += 1
    # The kills hit before, between and after: the old state, the new step, and of step 7, which was there, none and the new one.
    assert seen == {"[(7, [1])]", "[(7, [1]), (9, [9])]", "[(9, [9])]", "[(7, [2]), (9, [9])]"}
    assert number > 15


def fc_weight(seed: int) -> torch.Tensor:
    return snapshot(seed).tensors["model"]["fc.weight"]


def damage(path: Path, how: str) -> None:
    model = path / "model.safetensors"
    content = bytearray(model.read_bytes())
    if how == "truncated":
        model.write_bytes(content[:-100])
    elif how == "flipped":
        content[len(content) // 2] ^= 1
        model.write_bytes(content)
    elif how == "missing":
        model.unlink()
    elif how == "index torn":
        index = (path / "index.json").read_bytes()
        (path / "index.json").write_bytes(index[: len(index) // 2])
    elif how == "index gone":
        (path / "index.json").unlink()
    elif how == "facts":
        state = (path / "state.json").read_text()
        (path / "state.json").write_text(state.replace("0.5", "0.6"))
    else:
        index = json.loads((path / "index.json").read_text())
        del index[SEAL]
        FORGED[how](index)
        (path / "index.json").write_text(json.dumps(with_checksum(index)))


def foreign_path(index: dict) -> None:
    index["files"]["../../secret.safetensors"] = index["files"].pop("model.safetensors")


def overlapping(index: dict) -> None:
    index["strides"]["model"]["fc.turned"] = [1, 1]


# An index whose checksum fits, and whose content cannot be: what only a person could have written.
FORGED = {
    "foreign path": foreign_path,
    "overlapping strides": overlapping,
    "strides of another rank": lambda index: index["strides"]["model"].update({"fc.turned": [1]}),
    "strides that are text": lambda index: index["strides"]["model"].update({"fc.turned": "ab"}),
    "an entry that is text": lambda index: index["files"].update({"model.safetensors": "x"}),
    "an entry without a checksum": lambda index: index["files"].update({"model.safetensors": {"bytes": 3}}),
    "files that are a list": lambda index: index.update(files=["model.safetensors", "state.json"]),
    "no facts": lambda index: index["files"].pop("state.json"),
    "a negative step": lambda index: index.update(step=-3),
    "a step that is text": lambda index: index.update(step="3"),
    "another step": lambda index: index.update(step=4),
    "no format": lambda index: index.pop("format"),
}


DAMAGES = {
    "truncated": "model.safetensors: the file is damaged",
    "flipped": "model.safetensors: checksum",
    "missing": "model.safetensors: the file is not readable",
    "index torn": "index.json: the file is damaged",
    "index gone": "index.json is missing",
    "facts": "state.json: checksum",
    **dict.fromkeys(FORGED, "step-000003"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, how):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, snapshot(step))
    damage(tmp_path / "step-000003", how)
    said: list[str] = []
    found = find_newest_valid(tmp_path, Lines(said.append))
    assert found is not None
    assert found[0].name == "step-000002"
    assert_equal(found[1], snapshot(2))
    assert len(said) == 1 and said[0].startswith("warning: skipping step-000003: ") and DAMAGES[how] in said[0]


def test_only_damaged_checkpoints_are_an_error_and_none_is_a_fresh_start(tmp_path):
    assert find_newest_valid(tmp_path / "absent", SILENT) is None
    assert find_newest_valid(tmp_path, SILENT) is None
    save_checkpoint(tmp_path, 1, snapshot(1))
    damage(tmp_path / "step-000001", "flipped")
    with raises(CheckpointError, "damaged", "step-000001/model"):
        find_newest_valid(tmp_path, SILENT)


def test_a_half_written_folder_is_not_seen(tmp_path):
    (tmp_path / ".step-000009.77.part").mkdir(parents=True)
    save_checkpoint(tmp_path, 1, snapshot(1))
    assert list_steps(tmp_path) == [1]


def test_checkpoints_are_found_by_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"'last'.*: none"):
        find_checkpoint(tmp_path, "last")
    save_checkpoint(tmp_path, 5, snapshot(5))
    save_checkpoint(tmp_path, 12, snapshot(12))
    (tmp_path / "best").symlink_to("step-000005")
    assert find_checkpoint(tmp_path, "best").name == "step-000005"
    assert find_checkpoint(tmp_path, "last").name == "step-000012"  # also without the link
    assert find_checkpoint(tmp_path, "step-12") == find_checkpoint(tmp_path, "step-000012")
    assert_equal(load_checkpoint(tmp_path / "best"), snapshot(5))
    with pytest.raises(CheckpointError, match=r"'step-6' not found\. Available: best, step-000005, step-000012"):
        find_checkpoint(tmp_path, "step-6")


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("reader", ["of a run", "of weights"])
def test_a_checkpoint_that_a_training_deletes_under_its_reader_gives_way_to_the_next(tmp_path, monkeypatch, which, reader):
    monkeypatch.setattr(read, "read_facts", between := Pruned(tmp_path, which, read.read_facts))
    if reader == "of a run":
        path, found = read.load_checkpoint_with_retry(lambda: find_checkpoint(tmp_path, which))
        assert_equal(found, snapshot(4))
    else:
        path = find_weights_file(str(tmp_path / which)).parent
        assert_equal(load_checkpoint(path), snapshot(4))
    assert path == tmp_path / "step-000004" and between.left == 0
    between.left = 1
    with pytest.raises(CheckpointError, match=r"'step-4'|no checkpoint"):  # that one and no other
        read.load_checkpoint_with_retry(lambda: find_checkpoint(tmp_path, "step-4"))
    between.left = 1_000
    with pytest.raises(CheckpointError):
        read.load_checkpoint_with_retry(lambda: find_checkpoint(tmp_path, which))


class Pruned:
    """A training that goes on by a step whenever a reader has read an index, and keeps one checkpoint."""

    def __init__(self, folder: Path, link: str, real: Callable) -> None:
        self.folder, self.link, self.real, self.left, self.step = folder, link, real, 4, 0
        self._goes_on()

    def __call__(self, path: Path, index: Mapping) -> dict:
        if self.left:
            self._goes_on()
        return self.real(path, index)

    def _goes_on(self) -> None:
        self.left, self.step = self.left - 1, self.step + 1
        save_checkpoint(self.folder, self.step, snapshot(self.step))
        link = self.folder / self.link
        link.unlink(missing_ok=True)
        link.symlink_to(step_name(self.step))
        if self.step > 1:
            write.delete_checkpoint(self.folder / step_name(self.step - 1))


@pytest.mark.parametrize("link", ["", "step-000099"], ids=["no link", "dangling link"])
def test_the_last_checkpoint_stands_in_for_a_best_one_that_is_not_there_and_that_is_said(tmp_path, link, caplog):
    for step in (5, 12):
        save_checkpoint(tmp_path, step, snapshot(step))
    if link:
        (tmp_path / "best").symlink_to(link)
    said: list[str] = []
    assert find_checkpoint(tmp_path, "best", Lines(said.append)).name == "step-000012"
    assert len(said) == 1 and check_text(said[0], "best checkpoint", "step-000012") and "step-000012" in said[0]
    find_checkpoint(tmp_path, "best")
    assert check_line(caplog.text, "WARNING", "best checkpoint")  # never in silence
    assert find_checkpoint(tmp_path, "last", Lines(said.append)).name == "step-000012" and len(said) == 1


def test_another_recipe_is_refused_by_its_differing_keys():
    saved = {"epochs": 3.0, "optim": {"lr": 0.1, "decay_epochs": [1, 2]}, "model": {"depth": 50}}
    same = {"epochs": 3.0, "optim": {"lr": 0.1, "decay_epochs": (1, 2)}, "model": {"depth": 50}}
    check_same_recipe(saved, same)
    now = {"epochs": 4.0, "optim": {"lr": 0.1, "momentum": 0.9, "decay_epochs": (1, 2)}, "model": {"depth": 18}}
    with pytest.raises(CheckpointError) as error:
        check_same_recipe(saved, now)
    text = str(error.value)
    check_text(text, "epochs", "3.0", "4.0")
    check_text(text, "optim.momentum", "absent", "0.9")
    assert "model.depth" in text and "optim.lr" not in text and "--weights" in text
    check_same_recipe(saved, now, ignore=("epochs", "optim.momentum", "model"))


def test_of_many_differences_five_are_listed_or_none_where_another_line_says_it_all():
    saved, now = ({f"field{number}": value for number in range(8)} for value in (1, 2))
    with pytest.raises(CheckpointError, match="and 3 more") as error:
        check_same_recipe(saved, now, summary="", go_on="So it goes on.")
    assert "field4: 1 in" in str(error.value) and "field5" not in str(error.value) and "field4: 1" in str(error.value)
    with pytest.raises(CheckpointError) as error:
        check_same_recipe(saved, now, summary="It is another.", go_on="So it goes on.")
    assert str(error.value) == "It is another. So it goes on."


def test_an_index_that_was_changed_in_one_number_is_damaged(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, snapshot(step))
    file = tmp_path / "step-000002" / "index.json"
    index = json.loads(file.read_text())
    index["strides"]["model"]["fc.turned"] = [7, 1]  # a dense layout too, of other values
    file.write_text(json.dumps(index))
    said: list[str] = []
    found = find_newest_valid(tmp_path, Lines(said.append))
    assert found is not None and found[0].name == "step-000001" and "index.json: checksum" in said[0]


def test_a_checkpoint_that_the_caller_cannot_use_is_skipped_by_name(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, snapshot(step, position=step))

    def odd_only(found: Snapshot) -> None:
        if found.facts["position"] % 2 == 0:
            raise CheckpointError("it is even")

    said: list[str] = []
    found = find_newest_valid(tmp_path, Lines(said.append), odd_only)
    assert found is not None and found[0].name == "step-000001"
    assert said == [f"warning: skipping step-000002: {tmp_path / 'step-000002'}: it is even."]


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), (3, 1), True), ((2, 3), (1, 2), True), ((4, 3, 1, 1), (3, 1, 3, 3), True), ((1, 1), (0, 7), True),
        ((3, 3), (2, 2), False), ((2, 3), (0, 1), False), ((2, 3), (4, 1), False), ((2, 3), (-3, 1), False),
        ((), (), True), ((1,), (-1,), False),
    ],
)  # fmt: skip
def test_strides_are_dense_only_as_a_permutation_of_the_shape(shape, strides, dense):
    assert are_dense(shape, strides) == dense
