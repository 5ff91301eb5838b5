"""Checks a release and builds it, each point with a line: what a maintainer looks at first. Nothing is published or tagged.

    scripts/release.py                          this version, from a clean tree: wheel and source distribution into dist/
    scripts/release.py --rehearse               between releases: changes in the tree, and a changelog without this version, are noted
    scripts/release.py --python 3.10 3.12 3.13  installed and tried on each of these (here, by pyenv, or fetched by uv)
    scripts/release.py --lowest                 with the lowest versions that pyproject.toml allows

The wheel is built from the source distribution, and installed into a fresh environment outside of the checkout, where it prints its
help, examines the machine and trains two steps on built-in pictures. Needs git and uv; packages come from where uv is told to look.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Where the version stands beside paceline/_utils/version.py, which pyproject.toml reads.
COPIES = {
    "CITATION.cff": r'^version: "(.+)"$',
    "containers/TAG": r"^paceline:(.+)$",
    "containers/conda/recipe.yaml": r'^  version: "(.+)"$',
}
TRAIN = [
    "train",
    "classify-demo",
    "--max-steps",
    "2",
    "--max-train-images",
    "64",
    "--max-val-images",
    "64",
    "--system",
    "cpu",
    "--output-dir",
    "run",
]
# Prints where the package lies, and its version as its metadata and as it says itself.
WHERE = "import importlib.metadata, paceline; print(paceline.__file__, importlib.metadata.version('paceline'), paceline.__version__)"


class Refused(Exception):
    """A point of the list that does not hold: its text says what, and what to do."""


def version() -> str:
    """The version in paceline/_utils/version.py, which all copies must have.

    Raises Refused naming the copy that differs.
    """
    text = (ROOT / "paceline" / "_utils" / "version.py").read_text()
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"$', text, flags=re.M)
    if found is None:
        raise Refused('paceline/_utils/version.py: no line `__version__ = "X.Y.Z"` (X.Y.ZrcN before a release).')
    for name, pattern in COPIES.items():
        copy = re.search(pattern, (ROOT / name).read_text(), flags=re.M)
        if copy is None or copy[1] != found[1]:
            raise Refused(f"{name}: it has version {copy[1] if copy else 'none'}, paceline/_utils/version.py {found[1]}.")
    return found[1]


def changelog_problem(text: str, wanted: str) -> str:
    """What is missing in a changelog for the release of a version; "" where nothing is."""
    heading = re.search(rf"^## \[{re.escape(wanted)}\] - \d{{4}}-\d\d-\d\d$", text, flags=re.M)
    if heading is None:
        return f"CHANGELOG.md: no heading `## [{wanted}] - YYYY-MM-DD`. Give what stands under [Unreleased] that heading."
    entry = re.split(r"^## ", text[heading.end() :], flags=re.M)[0]
    return "" if re.search(r"^- ", entry, flags=re.M) else f"CHANGELOG.md: nothing stands under [{wanted}]."


def run(*words: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """-> what a program printed. Raises Refused with the end of it where it fails."""
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=environment, text=True, stdout=-1, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Refused(f"`{' '.join(map(str, words))}` ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def uv() -> str:
    """The program uv beside this Python, else the one on PATH."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else "uv"


def build(out: Path) -> tuple[Path, Path]:
    """-> (wheel, source distribution) in `out`; the wheel is built from the other."""
    for old in (*out.glob("paceline-*.whl"), *out.glob("paceline-*.tar.gz")):
        old.unlink()
    run(uv(), "build", "--out-dir", out, ROOT)
    return next(out.glob("paceline-*.whl")), next(out.glob("paceline-*.tar.gz"))


def check_wheel(wheel: Path, tracked: set[str]) -> int:
    """-> number of files of the package in it. Raises Refused where they are not exactly `tracked`, those that git has."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    ours = {name for name in names if not re.match(r"paceline-[^/]+\.dist-info/", name)}
    if ours != tracked:
        raise Refused(f"{wheel.name}: too many files {sorted(ours - tracked)[:5]}, missing {sorted(tracked - ours)[:5]}.")
    if not {"paceline/py.typed"} <= ours or not any(name.endswith("/licenses/LICENSE") for name in names):
        raise Refused(f"{wheel.name}: without py.typed or without the licence.")
    return len(ours)


def interpreter(python: str) -> str:
    """The path of a Python of pyenv's, whose programs of other versions are none on PATH; else the name, which uv finds or fetches."""
    own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{python}.*/bin/python"))
    return str(own[-1]) if own else python


def tried(wheel: Path, python: str, words: Sequence[str]) -> Iterator[str]:
    """Install the wheel into a fresh environment and use it, in a folder of its own -> lines, as it goes on.

    words   for `uv pip install`
    Raises Refused naming what failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        place, bare = Path(folder), {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
        bare |= {"PACELINE_CACHE": str(place / "cache"), "VIRTUAL_ENV": str(place / "env")}
        run(uv(), "venv", "-q", "-p", interpreter(python), place / "env")
        run(uv(), "pip", "install", "-q", "-p", place / "env", *words, wheel, cwd=place, environment=bare)
        programs = place / "env" / ("Scripts" if os.name == "nt" else "bin")
        where, known, said = run(programs / "python", "-c", WHERE, cwd=place, environment=bare).rsplit(maxsplit=2)
        if not Path(where).is_relative_to(place) or known != said:
            raise Refused(f"{where}: version {said}, and {known} in its metadata; the environment is {place / 'env'}.")
        run(uv(), "pip", "check", "-p", place / "env", cwd=place, environment=bare)
        packages = run(uv(), "pip", "list", "-p", place / "env", "--format", "freeze", cwd=place, environment=bare)
        yield f"Python {python}: installed {said}, {len(packages.split())} packages, {re.findall('torch==.*', packages)[0]}"
        for command in (["--help"], ["doctor"], TRAIN):
            run(programs / "paceline", *command, cwd=place, environment=bare)
            yield f"Python {python}: paceline {' '.join(command)}"
        made = {entry.name for entry in (place / "run").iterdir()}
        if not {"run.json", "events.jsonl", "report.html", "checkpoints"} <= made:
            raise Refused(f"the run's folder has {sorted(made)} alone.")


def checklist(asked: argparse.Namespace) -> Iterator[str]:
    """A line for each point that holds. Raises Refused at the first that does not."""
    release = version()
    yield f"version {release} in paceline/_utils/version.py, {', '.join(COPIES)}"
    changed = run("git", "status", "--porcelain").splitlines()
    problems = [changelog_problem((ROOT / "CHANGELOG.md").read_text(), release)]
    problems += [f"the tree has changes: {', '.join(line[3:] for line in changed[:5])}. Commit them."] if changed else []
    for problem in filter(None, problems):
        if not asked.rehearse:
            raise Refused(problem)
        yield f"not yet: {problem}"
    asked.out.mkdir(parents=True, exist_ok=True)
    wheel, source = build(asked.out.resolve())
    yield f"built {wheel.name} from {source.name}: {wheel.stat().st_size:,} and {source.stat().st_size:,} bytes"
    run(uv(), "tool", "run", "twine", "check", "--strict", wheel, source)
    yield "their metadata and README pass twine check --strict"
    count = check_wheel(wheel, set(run("git", "ls-files", "paceline").splitlines()))
    yield f"the wheel holds git's {count} files of paceline/ and nothing else"
    # What the wheel asks for would not count as direct.
    lowest = ["--resolution", "lowest-direct", "-r", str(ROOT / "pyproject.toml")]
    for python in asked.python:
        yield from tried(wheel, python, lowest if asked.lowest else [])
    if not asked.rehearse:
        yield f"to publish: git tag v{release} && git push --tags && uv publish {wheel} {source}"


def main() -> int:
    """Print the list -> exit code, 1 where a point does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", nargs="+", default=[own], metavar="X.Y", help="versions that it is tried on")
    parser.add_argument("--lowest", action="store_true", help="with the lowest versions that pyproject.toml allows")
    parser.add_argument("--rehearse", action="store_true", help="between releases: changelog and tree are noted alone")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for what is built")
    try:
        for line in checklist(parser.parse_args()):
            print(f"ok  {line}" if not line.startswith(("not yet", "to publish")) else f"    {line}", flush=True)
    except Refused as problem:
        print(f"NO  {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
