"""scripts/equal_bits.py reports every planted difference between two trees, and finds renamed tensors through its table."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest
import torch

import paceline

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "equal_bits.py"


@pytest.fixture
def bits(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    for name in ("equal_bits", "equal_bits_cases"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("equal_bits")


@pytest.fixture
def outcome():
    return {
        (1, "train event: loss"): torch.tensor([0.5], dtype=torch.float64),
        (1, "model: fc.bias"): torch.tensor([1.0, 2.0, 3.0]),
        (2, "model: fc.bias"): torch.tensor([1.0, float("nan"), 3.0]),
        (2, "model: stem.weight"): torch.zeros(2, 2),
        (2, "predict: images.file"): '["a.jpg"]',
    }


def test_equal_outcomes_have_no_line(bits, outcome):
    assert bits.compare(outcome, dict(outcome)) == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ((1, "model: fc.bias"), torch.tensor([1.0, 2.5, 3.0]), ("step 1", "1 of 3", "0.5")),
        ((1, "model: fc.bias"), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), ("dtype", "float32", "float64")),
        ((1, "model: fc.bias"), torch.tensor([[1.0, 2.0, 3.0]]), ("shape", "(3,)", "(1, 3)")),
        ((1, "train event: loss"), torch.tensor([0.5 + 2**-53], dtype=torch.float64), ("1 of 1", "1.11e-16")),
        ((2, "model: stem.weight"), torch.tensor([[0.0, -0.0], [0.0, 0.0]]), ("step 2", "1 of 4")),
        ((2, "predict: images.file"), '["b.jpg"]', ("a.jpg", "b.jpg")),
        ((3, "model: new"), torch.zeros(1), ("step 3", "only here")),
    ],
)
def test_one_changed_value_is_one_line(bits, outcome, key, value, words):
    (line,) = bits.compare(outcome, {**outcome, key: value})
    assert key[1] in line and all(word in line for word in words)


def test_a_missing_tensor_and_another_order_are_differences(bits, outcome):
    less = {key: value for key, value in outcome.items() if key != (1, "model: fc.bias")}
    assert ["base" in line for line in bits.compare(outcome, less)] == [True]
    names = list(outcome)
    names[2:4] = names[3], names[2]
    (line,) = bits.compare(outcome, {key: outcome[key] for key in names})
    assert "order" in line and "model: " in line


def test_the_first_step_that_differs_comes_first(bits, outcome):
    changed = {**outcome, (2, "model: fc.bias"): torch.zeros(3), (1, "train event: loss"): torch.tensor([0.6])}
    assert [line.split(",")[0] for line in bits.compare(outcome, changed)] == ["step 1", "step 2"]


def test_a_renamed_tensor_differs_unless_the_table_has_it(bits, outcome, monkeypatch, tmp_path):
    base = bits.Tree("the base", tmp_path, tmp_path, True)

    def renamed():
        """What the base's outcome is in this tree's names; here `fc` is called `head` and comes last."""
        return {(step, base.new("parameter", name)): value for (step, name), value in outcome.items()}

    here = {(step, name.replace("fc.", "head.")): value for (step, name), value in outcome.items() if "fc." not in name}
    here |= {(step, name.replace("fc.", "head.")): value for (step, name), value in outcome.items() if "fc." in name}
    assert len(bits.compare(renamed(), here)) == 4
    monkeypatch.setitem(bits.NAMES, "parameter", {"fc": "head"})
    assert bits.compare(renamed(), here) == []


def test_each_tree_has_its_own_names(bits, monkeypatch, tmp_path):
    base, here = (bits.Tree("", tmp_path, tmp_path, is_base) for is_base in (True, False))
    monkeypatch.setitem(bits.NAMES, "flag", {"--old": "--new", "--a on": "--b", "--x": "--y", "--y": "--x"})
    flags = "--new 1 --new-er 2 --b --x 3 --y 4"
    assert here.own("flag", flags) == flags
    assert base.own("flag", flags) == "--old 1 --new-er 2 --a on --y 3 --x 4"
    assert base.new("flag", base.own("flag", flags)) == flags
    monkeypatch.setitem(bits.NAMES, "parameter", {"trunk.stem": "backbone.stem"})
    assert base.new("parameter", "network.trunk.stem.weight trunk.stems") == "network.backbone.stem.weight trunk.stems"


def test_a_base_with_a_module_s_new_name_keeps_it(bits, monkeypatch, tmp_path):
    monkeypatch.setitem(bits.NAMES, "python", {"package.old": "package.new"})
    base = bits.Tree("", tmp_path, tmp_path, True)
    assert base.own("python", "import package.new") == "import package.new"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "old.py").touch()
    assert base.own("python", "import package.new") == "import package.old"


def test_json_becomes_tensors_with_the_lengths_of_its_lists(bits):
    found = bits.flatten({"a": [{"b": [1, 2]}, {"b": [3]}], "c": {"d": None}, "e": True})
    lists = {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in found.items()}
    assert lists == {"a (lengths)": [2], "a.b (lengths)": [2, 1], "a.b": [1, 2, 3], "c.d": "[null]", "e": [1]}


def test_every_case_sets_layout_compilation_graph_and_kernels(bits):
    for name, case in bits.CASES.items():
        for flag in ("channels-last", "compile", "cuda-graph", "kernels", "precision", "micro-batch-size", "num-workers"):
            assert case.flags.count(f"--system.{flag} ") == 1, (name, flag)


def planted(folder, file, old, new):
    """A copy of the package with one line changed."""
    shutil.copytree(Path(paceline.__file__).parent, folder / "paceline", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "paceline" / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    return folder


@pytest.mark.nightly("trains in two trees; by day their outcomes are compared")
def test_two_swapped_images_are_found(bits, tmp_path, class_photos, monkeypatch, capsys):
    for kind in bits.NAMES:
        monkeypatch.setitem(bits.NAMES, kind, {})  # both trees have today's names
    end = "            epochs[here] += times * AGAIN\n    return epochs, indices\n"
    swap = end.replace(
        "    return", "    if positions[0] == 2 * len(positions):\n        indices[[0, 1]] = indices[[1, 0]]\n    return"
    )
    base = planted(tmp_path, "data/loader/sampler.py", end, swap)
    words = ["equal_bits.py", "--base", base, "--images", class_photos, "--only", "^resnet, augmented"]
    monkeypatch.setattr(sys, "argv", [*map(str, words)])
    assert bits.main() == 1
    output = capsys.readouterr().out
    lines = output.splitlines()[1:-1]
    assert [line for line in lines if "step 3, batch 0: " not in line] == [], output
    assert any("batch 0: images: " in line and "of 36864 values differ" in line for line in lines)
    assert "0 of 1 cases" in output


def test_a_case_that_runs_in_one_tree_only_fails(bits, outcome, monkeypatch, tmp_path, capsys):
    trees = [bits.Tree(title, tmp_path, tmp_path, title == "the base") for title in ("the base", "this tree")]

    def fails_in(titles):
        def run(tree, *_):
            if tree.title in titles:
                raise bits.CommandFailed("exit code 2: planted")
            return outcome

        monkeypatch.setattr(bits.Tree, "outcome", run)
        return bits.examine("resnet", trees, bits.CASES["resnet"], 1, 1), capsys.readouterr().out

    assert fails_in([])[0]
    for titles, words in (
        (["the base"], "in the base"),
        (["this tree"], "in this tree"),
        (["the base", "this tree"], "in both trees"),
    ):
        equal, text = fails_in(titles)
        assert not equal and words in text and text.count("exit code 2: planted") == len(titles)


def test_a_command_that_fails_has_its_code_and_its_output(bits, tmp_path):
    tree = bits.Tree("the base", tmp_path, tmp_path, True)
    with pytest.raises(bits.CommandFailed, match=r"the base.*exit code 3.*\nplanted"):
        tree.run("-c", "print('planted'); raise SystemExit(3)")


@pytest.mark.parametrize(
    "words",
    [
        ["--base", "nowhere"],
        ["--base", str(SCRIPT.parents[1]), "--only", "no such case"],
        ["--base", str(SCRIPT.parents[1]), "--images", "nowhere"],
    ],
)
def test_bad_input_has_one_message(bits, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["equal_bits.py", *words])
    with pytest.raises(SystemExit, match="2"):
        bits.main()
    assert words[-1] in capsys.readouterr().err
