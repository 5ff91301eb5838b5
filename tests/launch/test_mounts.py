"""Which folders a container sees: those that the command names, at their own places, and none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline._utils.errors import PacelineError
from paceline.launch.containers.mounts import choose_mounts, choose_working_directory


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("data/coco", "weights", "runs/one", "cache", "ssd"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "weights" / "resnet34.pth").touch()
    (tmp_path / "mine.py").touch()
    return tmp_path


def seen(tree: Path, *words: str, more: tuple[str, ...] = ()) -> dict[str, bool]:
    """Path inside, below `tree` -> whether it is written."""
    found = choose_mounts(words, tree / "runs/one", tree / "cache", more, tree)
    assert all(mount.host == Path(mount.inside) for mount in found if not more)
    assert [Path(m.inside).parts for m in found] == sorted(Path(m.inside).parts for m in found)
    return {str(Path(mount.inside).relative_to(tree)): mount.writable for mount in found}


ALWAYS = {"runs/one": True, "cache": True}


def test_data_and_the_folder_of_weights_are_read_and_the_run_and_the_cache_written(tree: Path) -> None:
    words = ("train", "ssd", "--data", f"{tree}/data/coco", f"--weights={tree}/weights/resnet34.pth")
    assert seen(tree, *words, "--output-dir", f"{tree}/runs/one") == {**ALWAYS, "data/coco": False, "weights": False}


def test_relative_paths_begin_in_the_working_directory(tree: Path) -> None:
    assert seen(tree, "train", "ssd", "--data", "data/coco") == {**ALWAYS, "data/coco": False}


def test_a_recipes_name_is_no_folder_even_where_there_is_one(tree: Path) -> None:
    assert seen(tree, "train", "ssd", "--max-steps", "3") == ALWAYS


def test_a_recipe_of_ones_own_brings_its_folder(tree: Path) -> None:
    found = seen(tree, "train", "./mine.py:recipe")
    assert found["."] is False and found["runs/one"] and found["cache"]


def test_what_another_mount_brings_is_not_mounted_again(tree: Path) -> None:
    assert seen(tree, "train", "ssd", "--data", f"{tree}/runs/one", "--weights", f"{tree}/cache") == ALWAYS
    found = seen(tree, "train", "ssd", "--data", f"{tree}/data", "--weights", f"{tree}/data/coco")
    assert found == {**ALWAYS, "data": False}


def test_addresses_and_what_is_not_there_are_left_alone(tree: Path) -> None:
    assert seen(tree, "train", "ssd", "--data", "s3://bucket/data", "--weights", "nowhere.pth") == ALWAYS


def test_what_the_nodes_alone_have_is_mounted_without_a_look_here(tree: Path) -> None:
    reads, writes = ("/raid/no/coco", "/raid/w/resnet.pth"), ("/local/no/stage",)
    more = ("/raid/x", "/raid/y:/inside:rw")
    found = choose_mounts((), tree / "run", tree / "cache", more, tree, reads=reads, writes=writes, here=False)
    told = {mount.inside: (str(mount.host), mount.writable) for mount in found}
    assert told.pop(str(tree / "run")) and told.pop(str(tree / "cache"))
    assert told == {
        "/raid/no/coco": ("/raid/no/coco", False),
        "/raid/w": ("/raid/w", False),  # a file's neighbors come along
        "/local/no/stage": ("/local/no/stage", True),
        "/raid/x": ("/raid/x", False),
        "/inside": ("/raid/y", True),
    }
    on_this_machine = choose_mounts((), tree / "run", tree / "cache", (), tree, reads=reads, writes=writes)
    assert {mount.inside for mount in on_this_machine if mount.inside[1:6] in ("raid/", "local")} == {"/local/no/stage"}
    with pytest.raises(PacelineError, match="--mount nowhere"):
        choose_mounts((), tree / "run", tree / "cache", ("nowhere",), tree, here=False)


def test_data_that_no_word_names_is_read_and_a_stage_is_written(tree: Path) -> None:
    found = choose_mounts(
        ("train", "ssd"),
        tree / "runs/one",
        tree / "cache",
        (),
        tree,
        reads=("data/coco", f"{tree}/weights/resnet34.pth", "s3://bucket/x", ""),
        writes=("../stage", ""),
    )
    told = {mount.inside: mount.writable for mount in found}
    assert told == {
        str(tree / "runs/one"): True,
        str(tree / "cache"): True,
        str(tree / "data/coco"): False,
        str(tree / "weights"): False,
        str(tree.parent / "stage"): True,
    }


def test_processes_start_where_a_folder_is_inside(tree: Path) -> None:
    def start(workdir: Path, *words: str) -> str:
        found = choose_mounts(words, tree / "runs/one", tree / "cache", (), workdir)
        where = choose_working_directory(workdir, found)
        around = [mount for mount in found if workdir.is_relative_to(mount.inside)]
        within = [mount for mount in found if Path(mount.inside).is_relative_to(workdir)]
        assert where == "/" or around or within  # it is there inside
        return where

    elsewhere = tree / "ssd"
    assert start(tree, "train", "ssd") == str(tree)  # the run lies in it
    assert start(tree / "runs/one", "train", "ssd") == str(tree / "runs/one")
    assert start(elsewhere, "train", "ssd", "--data", f"{tree}/data/coco") == "/"
    assert start(elsewhere, "train", "ssd", "--data", "../data/coco") == str(elsewhere)
    assert start(Path("/"), "train", "ssd") == "/"


def test_folders_that_are_asked_for(tree: Path) -> None:
    more = (f"{tree}/data:{tree}/inside", f"{tree}/weights:rw")
    assert seen(tree, "train", "ssd", more=more) == {**ALWAYS, "inside": False, "weights": True}


@pytest.mark.parametrize("text", ["nowhere", "data:relative", "data:/", "/:/all", ""])
def test_a_mount_that_cannot_be_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tree)
    with pytest.raises(PacelineError, match="--mount") as told:
        choose_mounts((), tree / "runs/one", tree / "cache", (text,), tree)
    assert "\n" not in str(told.value)
