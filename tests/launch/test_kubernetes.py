"""examples/kubernetes.yaml passes the schema of Kubernetes, the parser of paceline, and a real shell."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.cli.flags import parse_run_args
from paceline.config.run import RunOptions
from paceline.distributed.comm.exit_code import EXIT_CODE_FILE
from paceline.distributed.device.systems import choose_system
from paceline.launch.job import NODE_VARIABLES

SERVICE, JOB = yaml.safe_load_all((Path(__file__).parents[2] / "examples/kubernetes.yaml").read_text())
POD = JOB["spec"]["template"]["spec"]
RANKS = POD["containers"][0]


@pytest.mark.parametrize("document", [SERVICE, JOB], ids=["service", "job"])
@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_the_schema_accepts_it(document: dict[str, Any], version: str) -> None:
    pytest.importorskip("kubernetes_validate").validate(document, version, strict=True)


def test_the_schema_would_refuse_a_typo() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    wrong = {**JOB, "spec": {**JOB["spec"], "completionsMode": "Indexed"}}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, "1.31", strict=True)


def test_its_parts_name_each_other() -> None:
    variables = {entry["name"] for entry in RANKS["env"]}
    assert variables == {*NODE_VARIABLES, EXIT_CODE_FILE}
    values = {entry["name"]: entry.get("value") for entry in RANKS["env"]}
    assert POD["subdomain"] == SERVICE["metadata"]["name"]
    assert values["PET_MASTER_ADDR"] == f"{JOB['metadata']['name']}-0.{SERVICE['metadata']['name']}"
    assert values["PET_NNODES"] == str(JOB["spec"]["completions"]) == str(JOB["spec"]["parallelism"])
    assert SERVICE["spec"]["selector"]["batch.kubernetes.io/job-name"] == JOB["metadata"]["name"]
    assert {mount["name"] for mount in RANKS["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}


def test_its_command_parses_and_its_paths_are_mounted() -> None:
    line = RANKS["command"][-1].partition("\n")[2].partition("&\n")[0].replace("\\\n", " ")
    words = shlex.split(line)
    assert words[:3] == ["python3", "-m", "torch.distributed.run"]
    system = choose_system(words[words.index("--system") + 1])
    assert (
        int(words[words.index("--nproc-per-node") + 1])
        == system.ranks_per_node
        == RANKS["resources"]["limits"]["nvidia.com/gpu"]
    )
    train = words[words.index("paceline") + 1 :]
    asked = parse_run_args(train[1:], RunOptions(), verb=train[0])
    mounts = {mount["mountPath"]: not mount.get("readOnly") for mount in RANKS["volumeMounts"]}
    for path, written in ((asked.options.data, False), (asked.options.weights, False), (asked.options.output_dir, True)):
        root = next(mount for mount in mounts if path.startswith(mount))
        assert mounts[root] is written, path


@pytest.mark.parametrize(
    ("ranks", "code"),
    [("exit 0", 0), ("exit 1", 1), ('echo 75 >"$PACELINE_EXIT_CODE_FILE"; exit 1', 75), ("kill $PPID; sleep 0.2; exit 9", 9)],
    ids=["done", "failed", "interrupted", "a signal meanwhile"],
)  # fmt: skip
def test_the_pod_ends_as_the_run_did(tmp_path: Path, ranks: str, code: int) -> None:
    """The shell's part of the command, with other ranks: SIGTERM to the shell reaches them, and their end is waited for."""
    first, rest = RANKS["command"][-1].split("\n", 1)
    start, rest = rest.split("&\n", 1)
    assert first.startswith("trap ") and "torch.distributed.run" in start
    trap = "trap : TERM; " if "kill" in ranks else ""
    environ = {**os.environ, EXIT_CODE_FILE: str(tmp_path / "code")}
    done = subprocess.run(
        ["sh", "-c", f"{first}\nsh -c {shlex.quote(trap + ranks)} &\n{rest}"],
        env=environ, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
