"""A .pt2 answers as its run does; and why no verb opens a stranger's."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile

import numpy as np
import pytest
import torch
from messages import check_line
from tiny_runs import command, refused

from paceline._utils.atomic_write import IN_ZIP, is_replaceable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def test_a_classifier_s_file_is_opened_by_torch_alone_and_replaced(resnet_run, tmp_path, capsys):
    out = tmp_path / "cats.pt2"
    said = command(capsys, "export", resnet_run.folder, "--output", out)
    assert said.code == 0 and check_line(said.out, "9 images", "probability"), said
    extra = {"paceline.json": ""}
    program = torch.export.load(out, extra_files=extra)
    facts = json.loads(extra["paceline.json"])
    assert facts["classes"] == ["ant", "bee", "cat"] and facts["graph"]["layout"] == "NHWC uint8"
    assert not any("stack_trace" in node.meta for node in program.graph.nodes)
    photos = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3), dtype=np.uint8))
    (found,) = program.module()(photos)
    assert found.shape == (3, 3) and torch.allclose(found.sum(dim=1), torch.ones(3), atol=1e-6)
    assert is_replaceable(out)
    theirs = tmp_path / "theirs.pt2"
    with zipfile.ZipFile(theirs, "w") as archive:
        archive.writestr("model/extra/other.json", "{}")
    refused(command(capsys, "export", resnet_run.folder, "--output", theirs), "theirs.pt2", "exists")
    with zipfile.ZipFile(theirs, "a") as archive:
        archive.writestr(IN_ZIP, "{}")
    assert is_replaceable(theirs)


def test_aoti_names_the_compiler_that_is_missing(resnet_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused(
        command(capsys, "export", resnet_run.folder, "--format", "aoti", "--output", tmp_path / "cats.pt2"),
        "no-such-compiler",
    )


class Runs:
    """Pickled, it writes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_torch_s_loader_runs_code_that_a_pt2_holds(tmp_path):
    """What docs/how-to/export.md says of strangers' files. Where this fails, torch has become safer: say so there."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.weight * values

    good, bad, proof = tmp_path / "good.pt2", tmp_path / "bad.pt2", tmp_path / "ran"
    torch.export.save(torch.export.export(Twice(), (torch.ones(3),)), good)
    payload = io.BytesIO()
    torch.save(Runs(str(proof)), payload)
    with zipfile.ZipFile(good) as read, zipfile.ZipFile(bad, "w", zipfile.ZIP_STORED) as write:
        for entry in read.infolist():
            content = read.read(entry)
            name = entry.filename.replace("good/", "bad/")
            if name.endswith("model_weights_config.json"):
                config = json.loads(content)
                for one in config["config"].values():
                    one["use_pickle"] = True
                content = json.dumps(config).encode()
            elif "/data/weights/" in name:
                content = payload.getvalue()
            write.writestr(name, content)
    with contextlib.suppress(Exception):  # a file is no tensor, and that is noticed too late
        torch.export.load(bad)
    assert proof.exists()
