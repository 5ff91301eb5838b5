"""Weight files are data, every key is reported, and a file of another model is refused by name."""

from __future__ import annotations

import argparse
import collections
import io
import os
import pickle
import shlex
import struct
import types
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import torch
from messages import check_lines, raises
from pickled_weights import gluon_arrays
from safetensors.torch import save_file

from paceline._utils.errors import CheckpointError
from paceline.cli.main import main
from paceline.models.backbones.base import init_weights
from paceline.models.backbones.resnet import ResNet
from paceline.models.weights.formats.array_pickle import read_pickled_arrays
from paceline.models.weights.formats.torchvision import resnet_fields
from paceline.models.weights.load import load_weights
from paceline.models.weights.weight_file import open_weights


def tiny(depth: int = 18, classes: int = 5, seed: int = 0, **settings) -> ResNet:
    model = ResNet(depth, classes, width=4, **settings)
    init_weights(model, "torchvision", torch.Generator().manual_seed(seed))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.get_buffer("running_mean").normal_(generator=torch.Generator().manual_seed(seed))
    return model


def same(model: ResNet, other: ResNet, skip: str = "nothing") -> bool:
    theirs = other.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items() if not name.startswith(skip))
    return True


def contiguous(model: ResNet) -> dict[str, torch.Tensor]:
    return {name: value.contiguous() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("prefix", ["", "module.", "network."])
@pytest.mark.parametrize("form", ["pth", "safetensors", "state_dict", "model"])
def test_every_wrapping_of_a_file_loads_all_keys(tmp_path, form, prefix):
    source, model = tiny(seed=1), tiny(seed=2)
    state = {prefix + name: value for name, value in contiguous(source).items()}
    path = tmp_path / f"w.{'safetensors' if form == 'safetensors' else 'pth'}"
    if form == "safetensors":
        save_file(state, path)
    else:
        torch.save({form: state, "epoch": 3} if form in ("state_dict", "model") else state, path)
    report = load_weights(model, path)
    assert same(model, source)
    assert len(report.used) == len(model.state_dict())
    assert check_lines(report.lines(), (path, f"{len(report.used)} tensors", "0"))


PREFIXES = (
    "module._orig_mod.", "_orig_mod.module.", "_orig_mod.", "module.module.", "model._orig_mod.", "_orig_mod.model.",
    "module.model.", "network._orig_mod.module.",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_of_wrappers_are_removed_in_any_order(tmp_path, prefix):
    source, model = tiny(seed=1), tiny(seed=2)
    torch.save({prefix + name: value for name, value in contiguous(source).items()}, tmp_path / "w.pth")
    assert len(load_weights(model, tmp_path / "w.pth").used) == len(model.state_dict())
    assert same(model, source)


def test_names_of_a_part_that_was_compiled_are_read(tmp_path):
    source, model = tiny(seed=1), tiny(seed=2)
    state = {name.replace("layer2.", "layer2._orig_mod."): value for name, value in contiguous(source).items()}
    torch.save(state, tmp_path / "w.pth")
    load_weights(model, tmp_path / "w.pth")
    assert same(model, source)


VALUES = (
    argparse.Namespace(lr=0.1, output=Path("runs"), nested=argparse.Namespace(x=[1, "a"])),
    types.SimpleNamespace(lr=0.1),
    {"path": PureWindowsPath("C:/runs")},
)


@pytest.mark.parametrize("value", VALUES)
def test_values_of_training_programs_next_to_the_tensors_are_no_obstacle(tmp_path, value):
    source, model = tiny(seed=1), tiny(seed=2)
    torch.save({"model": source.state_dict(), "args": value, "epoch": 7}, tmp_path / "w.pth")
    load_weights(model, tmp_path / "w.pth")
    assert same(model, source)


class Runs:
    """Code that a pickle would run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.folder / "ran"),)


@pytest.mark.parametrize("place", ["args", "inside"])
def test_nothing_in_a_namespace_is_run(tmp_path, place):
    args = argparse.Namespace(inner=Runs(tmp_path)) if place == "inside" else Runs(tmp_path)
    torch.save({"model": tiny(seed=1).state_dict(), "args": args}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="mkdir"):
        load_weights(tiny(), tmp_path / "w.pth")
    assert not (tmp_path / "ran").exists()
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


def averaged(model: ResNet) -> dict[str, torch.Tensor]:
    """As torchvision's reference saves an average."""
    state = {f"module.{name}": value for name, value in contiguous(model).items()}
    return {"n_averaged": torch.tensor(3), **state}


@pytest.mark.parametrize("name", ["model_ema", "state_dict_ema", "ema"])
def test_an_average_next_to_the_weights_is_named_with_the_way_to_read_it(tmp_path, capsys, name):
    source, average, model = tiny(seed=1), tiny(seed=3), tiny(seed=2)
    path = tmp_path / "w.pth"
    torch.save({"model": source.state_dict(), name: averaged(average), "args": VALUES[0]}, path)
    lines = load_weights(model, path).lines()
    assert same(model, source)
    (line,) = [line for line in lines if f"the file also has {name}," in line]
    words = shlex.split(line.partition("paceline ")[2])
    assert main(words) == 0
    converted = Path(words[words.index("--output") + 1])
    report = load_weights(model, converted)
    assert same(model, average) and not any("also has" in line for line in report.lines())
    with raises(CheckpointError, "model", "--key swa"):
        open_weights(path, key="swa")
    # Without other weights, the average is read, also in a dict of its own.
    torch.save({"ema": {"module": average.state_dict(), "updates": 3}}, path)
    assert not any("also has" in line for line in load_weights(model, path).lines()) and same(model, average)
    torch.save({name: averaged(average), "epoch": 3}, path)
    assert not any("also has" in line for line in load_weights(tiny(), path).lines())
    load_weights(model, path)
    assert same(model, average)


def test_a_dict_under_another_name_is_named(tmp_path):
    torch.save({"net": tiny(seed=1).state_dict(), "epoch": 3}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"net, epoch.*:  paceline .* --key net"):
        load_weights(tiny(), tmp_path / "w.pth")
    assert open_weights(tmp_path / "w.pth", key="net").ours.tensors.keys() == tiny().state_dict().keys()


def test_loading_keeps_the_models_memory_format(tmp_path):
    torch.save(tiny(seed=1).state_dict(), tmp_path / "w.pth")
    model = tiny(seed=2).to(memory_format=torch.channels_last)
    load_weights(model, tmp_path / "w.pth")
    assert model.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_another_number_of_classes_keeps_the_new_head_and_says_so(tmp_path):
    source, model = tiny(classes=9, seed=1), tiny(classes=5, seed=2)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    report = load_weights(model, tmp_path / "w.pth")
    assert report.reinitialised == ("fc.weight", "fc.bias")
    assert same(model, source, skip="fc.")
    assert torch.equal(model.fc.weight, tiny(classes=5, seed=2).fc.weight)
    assert "fc.weight, fc.bias" in "\n".join(report.lines())
    with raises(CheckpointError, "fc.weight", "(9, 32)", "(5, 32)"):
        load_weights(model, tmp_path / "w.pth", allow_new_head=False)


def test_old_files_without_batch_counters_load_and_the_counters_are_reported(tmp_path):
    state = {name: value for name, value in tiny(seed=1).state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "w.pth")
    report = load_weights(tiny(), tmp_path / "w.pth")
    assert len(report.missing) == 20
    assert all(name.endswith("num_batches_tracked") for name in report.missing)


@pytest.mark.parametrize(
    ("source", "model", "says"),
    [
        ({"depth": 34}, {"depth": 18}, "another model ... unknown ... layer1.2"),
        ({"depth": 18}, {"depth": 34}, "missing ... layer1.2"),
        ({"depth": 50}, {"depth": 18}, "another model"),
        ({"stem": "small"}, {"stem": "imagenet"}, "conv1.weight ... (4, 3, 3, 3) ... (4, 3, 7, 7)"),
    ],
)
def test_weights_of_another_model_are_refused_and_change_nothing(tmp_path, source, model, says):
    torch.save(tiny(**source, seed=1).state_dict(), tmp_path / "w.pth")
    target = tiny(**model, seed=2)
    with raises(CheckpointError, says) as refused:
        load_weights(target, tmp_path / "w.pth")
    assert str(tmp_path / "w.pth") in str(refused.value)
    assert same(target, tiny(**model, seed=2))


def test_a_shorter_trunk_says_what_it_leaves(tmp_path):
    torch.save(tiny(seed=1).state_dict(), tmp_path / "w.pth")
    trunk = tiny(seed=2)
    del trunk.layer4, trunk.fc
    with raises(CheckpointError, "unknown"):
        load_weights(trunk, tmp_path / "w.pth")
    report = load_weights(trunk, tmp_path / "w.pth", allow_unexpected=("layer4.", "fc."))
    assert {name.split(".")[0] for name in report.unexpected} == {"layer4", "fc"}
    with raises(CheckpointError, "missing"):
        torch.save(trunk.state_dict(), tmp_path / "trunk.pth")
        load_weights(tiny(), tmp_path / "trunk.pth")
    report = load_weights(tiny(), tmp_path / "trunk.pth", allow_missing=("layer4.",))
    assert report.reinitialised == ("fc.weight", "fc.bias")


class Dangerous:
    def __reduce__(self):
        return print, ("executed",)


def bad_files(folder):
    yield folder / "absent.pth", "weight file not found"
    (folder / "text.pth").write_text("hello")
    yield folder / "text.pth", "damaged, truncated, or not a weight file"
    torch.save(tiny().state_dict(), folder / "torn.pth")
    (folder / "torn.pth").write_bytes((folder / "torn.pth").read_bytes()[:5000])
    yield folder / "torn.pth", "damaged, truncated, or not a weight file"
    torch.save({"model": Dangerous()}, folder / "code.pth")
    yield folder / "code.pth", "only tensors are loaded"
    torch.save([1, 2], folder / "list.pth")
    yield folder / "list.pth", "expected a dict of tensors"
    (folder / "torn.safetensors").write_bytes(struct.pack("<Q", 10**6) + b"{}")
    yield folder / "torn.safetensors", "damaged, truncated, or not a weight file"
    (folder / "empty").mkdir()
    yield folder / "empty", "no .npy files"
    (folder / "objects").mkdir()
    np.save(folder / "objects" / "conv0_weight.npy", np.array([Dangerous()]), allow_pickle=True)
    yield folder / "objects", "not a plain numpy array"
    (folder / "words").mkdir()
    np.save(folder / "words" / "name.npy", np.array(["x"]))
    yield folder / "words", "without numbers"
    for name, content in {
        "code.pkl": pickle.dumps({"a": Dangerous()}),
        "list.pkl": pickle.dumps([np.zeros(2)]),
        "number.pkl": pickle.dumps({"a": 3}),
        "objects.pkl": pickle.dumps({"a": np.array([None])}),
        "torn.pkl": pickle.dumps({"a": np.zeros(1000)})[:500],
        "memo.pkl": b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b".",
    }.items():
        (folder / name).write_bytes(content)
    yield folder / "code.pkl", "not loaded, because it would run builtins.print"
    yield folder / "list.pkl", "expected a pickled dict"
    yield folder / "number.pkl", "'a' is not the name of an array"
    yield folder / "objects.pkl", "not a readable pickle"
    yield folder / "torn.pkl", "not a readable pickle"
    yield folder / "memo.pkl", "memo index"


def test_bad_files_are_named_with_the_reason_and_nothing_in_them_runs(tmp_path, capsys):
    for path, reason in bad_files(tmp_path):
        with pytest.raises(CheckpointError, match=reason) as refused:
            open_weights(path, pickles=True)
        assert str(path) in str(refused.value)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_arrays_of_every_protocol_and_type_come_back_equal(tmp_path, protocol):
    arrays = collections.OrderedDict(
        a=np.arange(12, dtype=np.float32).reshape(3, 4),
        b=np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
        c=np.arange(4, dtype=">i4"),
        d=np.zeros((0, 3), np.float16),
        e=np.array(1.5, np.float32),
    )
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(arrays, protocol))
    found, _ = read_pickled_arrays(tmp_path / "w.pkl")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param((1, (10**12,), "f4", False, b"1234"), id="shape larger than the bytes"),
        pytest.param((1, (-1,), "f4", False, b""), id="negative side"),
        pytest.param((1, (1,), "O", False, [None]), id="objects"),
    ],
)
def test_arrays_that_lie_about_themselves_are_refused(tmp_path, state):
    version, shape, kind, fortran, content = state
    stream = io.BytesIO()
    stream.write(b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR")
    body = pickle.dumps((version, shape, "KIND", fortran, content), 2)[2:-1]
    # protocol 2 writes "KIND" as X + length + text, memoised: put the dtype's construction in its place
    text = b"X\x04\x00\x00\x00KIND"
    assert text in body
    stream.write(body.replace(text, b"cnumpy\ndtype\nU" + bytes([len(kind)]) + kind.encode() + b"\x85R"))
    stream.write(b"bs.")
    (tmp_path / "w.pkl").write_bytes(stream.getvalue())
    with raises(CheckpointError, "pickle"):
        read_pickled_arrays(tmp_path / "w.pkl")


def test_a_pickle_cannot_change_the_reader(tmp_path):
    # BUILD with a state on an allowed global: must fail, and the next file must still load.
    (tmp_path / "w.pkl").write_bytes(b"\x80\x02c_codecs\nencode\n(N}U\x08functioncnumpy\nndarray\nstb.")
    with raises(CheckpointError, "pickle"):
        read_pickled_arrays(tmp_path / "w.pkl")
    (tmp_path / "good.pkl").write_bytes(pickle.dumps({"a": np.ones(3)}, 2))
    np.testing.assert_array_equal(read_pickled_arrays(tmp_path / "good.pkl")[0]["a"], np.ones(3))


def test_the_mxnet_ssds_pickled_backbone_fills_a_resnet34_trunk(tmp_path):
    source, trunk = tiny(34, seed=1), tiny(34, seed=2)
    arrays = gluon_arrays(source)
    assert "stage2_conv2_weight" in arrays and arrays["stage2_conv2_weight"].shape[2:] == (1, 1)
    (tmp_path / "resnet34.pickle").write_bytes(pickle.dumps(arrays))
    del trunk.layer4, trunk.fc
    report = load_weights(trunk, open_weights(tmp_path / "resnet34.pickle", pickles=True))
    assert not report.unexpected and not report.reinitialised
    assert all(name.endswith("num_batches_tracked") for name in report.missing)
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in trunk.state_dict().items())


def nvidia_arrays(model: ResNet) -> dict[str, np.ndarray]:
    arrays = {}
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        parts = name.split(".")
        owner, part = parts[:-1], parts[-1]
        norm = owner[-1].startswith("bn") or owner[-2:] == ["downsample", "1"]
        if norm:
            part = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_var"}[part]
        if owner[0].startswith("layer"):
            tail = "_".join(owner[2:]).replace("downsample_0", "conv1sc").replace("downsample_1", "sc")
            theirs = f"stage{owner[0][5:]}_unit{int(owner[1]) + 1}_{tail}"
        else:
            theirs = {"conv1": "conv0", "bn1": "bn0", "fc": "fc1"}[owner[0]]
        array = value.numpy()
        arrays[f"{theirs}_{part}"] = array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
    return arrays


@pytest.mark.parametrize(("theirs", "ours"), [(4, 3), (4, 4), (3, 3), (3, 4)])
def test_nvidias_folder_of_npy_files_fills_a_resnet50(tmp_path, theirs, ours):
    source, model = tiny(50, seed=1, input_channels=theirs), tiny(50, seed=2, input_channels=ours)
    for name, array in nvidia_arrays(source).items():
        np.save(tmp_path / f"{name}.npy", array)
    assert (tmp_path / "stage1_unit1_conv1sc_weight.npy").exists()
    report = load_weights(model, tmp_path)
    assert not report.unexpected
    assert report.converted == (() if theirs == ours else ("conv1.weight",))
    assert same(model, source, skip="conv1")
    assert torch.equal(model.conv1.weight[:, :theirs], source.conv1.weight[:, :ours])
    assert not model.conv1.weight[:, theirs:].any()


def test_gluons_bottleneck_names_follow_the_same_count(tmp_path):
    source, model = tiny(50, seed=1), tiny(50, seed=2)
    arrays = {"conv0_weight": source.conv1.weight.detach().numpy(), "dense0_bias": source.fc.bias.detach().numpy()}
    for stage in range(1, 5):
        count = 0
        for unit in getattr(source, f"layer{stage}"):
            convolutions = [unit.conv1, unit.conv2, unit.conv3]
            for conv in convolutions + ([unit.downsample[0]] if unit.downsample is not None else []):
                arrays[f"stage{stage}_conv{count}_weight"] = conv.weight.detach().numpy()
                count += 1
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(arrays))
    file = open_weights(tmp_path / "w.pkl", pickles=True)
    found = file.ours.tensors
    expected = {name: value for name, value in source.state_dict().items() if value.dim() == 4}
    assert {**found}.keys() == {*expected, "fc.bias"}
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    with raises(CheckpointError, "missing"):
        load_weights(model, file)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("width_per_group", [64, 128])
def test_which_resnet_it_is_is_told_from_its_shapes(groups, width_per_group):
    built = {"depth": 50, "groups": groups, "width_per_group": width_per_group}
    state = tiny(**built).state_dict()
    for prefix in ("", "trunk.", "backbone.body."):
        found = resnet_fields({prefix + name: tensor for name, tensor in state.items()})
        assert found == {**built, "width": 4, "stem": "imagenet", "input_channels": 3}


def test_a_stem_of_three_convolutions_is_named_and_whose_network_has_it(tmp_path):
    state = {name: tensor.contiguous() for name, tensor in tiny(18, 5).state_dict().items()}
    state |= {f"conv1.{place}.weight": state["conv1.weight"].clone() for place in (0, 3, 6)}
    del state["conv1.weight"]
    save_file(state, tmp_path / "d.safetensors")
    with pytest.raises(CheckpointError, match=r"three convolutions, .*--model.backbone timm/resnet18d"):
        load_weights(tiny(18, 5), tmp_path / "d.safetensors")
