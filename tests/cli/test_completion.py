"""`paceline completion`: what a shell offers is what the verbs have."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from tiny_runs import command, refused

from paceline.cli.main import VERBS
from paceline.config.recipes import RECIPES


@pytest.fixture(scope="module")
def offered():
    """Words typed so far -> what bash offers for the last of them."""
    from contextlib import redirect_stdout
    from io import StringIO

    from paceline.cli.main import main

    out = StringIO()
    with redirect_stdout(out):
        assert main(["completion", "bash"]) == 0

    def ask(*words: str) -> list[str]:
        typed = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _paceline; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", f"{out.getvalue()}\n{typed}"], capture_output=True, text=True, check=True)
        return done.stdout.split()

    return ask


def test_bash_offers_verbs_kinds_recipes_flags_and_values(offered):
    assert offered("paceline", "") == list(VERBS) and offered("paceline", "pre") == ["predict", "preview", "prepare"]
    assert set(RECIPES) == set(offered("paceline", "train", ""))
    assert offered("paceline", "mlperf", "a") == ["analyze"] and offered("paceline", "weights", "c") == ["convert"]
    assert offered("paceline", "train", "ssd", "--optim.l") == [
        "--optim.lr",
        "--optim.lars-trust-coefficient",
        "--optim.lars-eps",
        "--optim.layer-decay",
    ]
    assert offered("paceline", "prepare", "coco", "DIR", "--on-m") == ["--on-missing"]
    assert "--no-tensorboard" in offered("paceline", "train", "ssd-demo", "--no-") or "--no-save-images" in offered(
        "paceline", "predict", "RUN", "--no-"
    )
    assert offered("paceline", "plan", "ssd", "--system", "dgx-h") == ["dgx-h100"]
    assert "resnet50-v1" in offered("paceline", "train", "ssd", "--weights", "resnet5")


def test_the_other_shells_get_the_same_words(capsys):
    assert command(capsys, "completion", "zsh").out.startswith("autoload -U +X bashcompinit && bashcompinit\n_paceline() {")
    fish = command(capsys, "completion", "fish").out
    assert "'__fish_seen_subcommand_from eval' -l score-threshold\n" in fish and "-l system -r -a 'auto cpu" in fish
    refused(command(capsys, "completion", "tcsh"), "bash, zsh, fish")
