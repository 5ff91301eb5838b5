"""The README is executable: its commands parse, its file tree is the real one, its results have folders."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from paceline.cli.commands.plan import PlanFlags
from paceline.cli.commands.preview import PreviewFlags
from paceline.cli.flags import parse_run_args
from paceline.cli.main import VERBS, format_overview
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.distributed.device.systems import choose_system

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", README, flags=re.M | re.S)
RECIPE_VERBS = {"train": RunOptions(), "plan": PlanFlags(), "preview": PreviewFlags()}


def paceline_commands() -> list[str]:
    """Every `paceline VERB ...` in a fenced block, without comments and launchers."""
    lines = [line.partition("#")[0] for block in BLOCKS for part in block.splitlines() for line in part.split("&&")]
    found = [re.search(r"(?:\bpaceline|\.venv/bin/paceline)\s+([a-z].*)", line) for line in lines]
    return [match[1].strip() for match in found if match and not match[0].startswith("paceline/")]


@pytest.mark.parametrize("command", paceline_commands())
def test_a_readme_command_parses(command: str) -> None:
    words = shlex.split(command)
    assert words[0] in VERBS, command
    if words[0] in RECIPE_VERBS:
        parse_run_args(words[1:], RECIPE_VERBS[words[0]], verb=words[0])
    if "--system" in words and words[words.index("--system") + 1] != "gpu":
        choose_system(words[words.index("--system") + 1])


def test_the_first_block_is_the_main_command_and_the_second_the_tests() -> None:
    assert BLOCKS[0].strip().endswith("paceline train ssd-demo") and BLOCKS[0].strip().count("\n") == 0
    assert BLOCKS[1].strip() == "scripts/test.sh"


def test_ci_runs_the_readmes_test_command() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    (place,) = (number for number, line in enumerate(lines) if line.startswith("cd "))
    assert lines[place + 1] == BLOCKS[1].strip()
    # Only if these pass: bash ends at the first command that fails.
    assert "set -euo pipefail" in lines[:place]
    assert all(line.startswith(("part=", "echo ", "scripts/test.sh --nightly ")) for line in lines[place + 2 :])


def test_the_file_tree_is_the_real_one() -> None:
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
    (tree,) = (block for block in re.findall(r"^```\n(.*?)^```", page, flags=re.M | re.S) if "paceline/cli/" in block)
    packages = [f"paceline/{path.parent.name}" for path in (ROOT / "paceline").glob("*/__init__.py")]
    tops = ["benchmarks", "containers", "docs", "examples", "results", "scripts", "tests"]
    entries = [name for line in tree.splitlines() for name in re.split("  +", line)[0].split()]
    assert sorted(entries) == sorted(f"{name}/" for name in packages + tops)


def test_every_module_and_test_that_the_architecture_names_exists() -> None:
    for page in (ROOT / "docs" / "contributing" / "architecture.md", *(ROOT / "docs/explanation").glob("*.md")):
        for name in set(re.findall(r"(?<![\w./])((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b", page.read_text())):
            assert (ROOT / name).is_file() or (ROOT / "paceline" / name).is_file(), f"{page.name}: {name}"


def test_every_file_of_ours_that_a_page_or_a_docstring_names_by_its_path_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += (ROOT / "results").rglob("README.md")
    sources = [path for room in ("paceline", "benchmarks", "scripts") for path in (ROOT / room).rglob("*.py")]
    theirs = "tests/generate_report.py", "scripts/datasets/mscoco.py", "scripts/instance/mask_rcnn/train_mask_rcnn.py"
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in pages + sources
        for name in re.findall(r"(?<![\w./-])((?:paceline|tests|scripts|benchmarks)/[a-z_0-9/]+\.py)\b", path.read_text())
        if not (ROOT / name).is_file() and name not in theirs
    ]
    assert not missing, "\n".join(missing)


def test_links_between_pages_lead_to_a_file_and_a_heading() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for path, heading in re.findall(r"\]\((?!\w+://)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {path}"
            if heading:
                headings = re.findall(r"^#+ (.*)", target.read_text(), flags=re.M)
                slugs = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
                assert heading in slugs, f"{page.name}: {path}#{heading}"


def test_what_scripts_and_results_import_of_ours_exists() -> None:
    # Most are run by hand, on machines and beside systems that no test has.
    for path in (path for room in ("benchmarks", "scripts", "results") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("paceline", "benchmarks")):
                place = ROOT / str(node.module).replace(".", "/")
                source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
                assert source.is_file(), f"{path.relative_to(ROOT)}: {node.module}"
                known = set(re.findall(r"\w+", source.read_text())) | {entry.stem for entry in place.glob("*")}
                for name in node.names:
                    assert name.name in known, f"{path.relative_to(ROOT)}: {node.module}.{name.name}"


def test_the_architecture_is_a_page() -> None:
    assert len((ROOT / "docs" / "contributing" / "architecture.md").read_text().splitlines()) <= 120


def test_every_results_folder_that_is_named_exists() -> None:
    text = README + "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for name in set(re.findall(r"results/([a-z0-9-]+)", text)):
        assert (ROOT / "results" / name / "README.md").is_file() or name == "gpu", name


def test_the_index_pages_name_each_page() -> None:
    docs = ROOT / "docs"
    named = {docs / "index.md"}
    for index in docs.rglob("index.md"):
        named |= {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]*\.md)", index.read_text())}
    pages = {*docs.rglob("*.md"), *ROOT.glob("*.md")} - {
        ROOT / "README.md",
        *(docs / "reference/generated/migration").glob("*"),
    }
    assert not [str(page.relative_to(ROOT)) for page in pages - named], "an index.md, which fills the sidebar, lacks these"


def test_the_pythons_of_the_readme_and_of_the_installation_are_those_of_the_package() -> None:
    minors = sorted(int(minor) for minor in re.findall(r":: Python :: 3\.(\d+)", (ROOT / "pyproject.toml").read_text()))
    named = f"Python 3.{minors[0]} to 3.{minors[-1]}"
    assert named in README and named in (ROOT / "docs/tutorials/install.md").read_text()


def test_the_cpu_build_is_chosen_for_the_whole_command() -> None:
    # VAR=value before `a && b` is set for a alone, and `b` installs torch.
    assert "`export UV_TORCH_BACKEND=cpu`" in README
    assert len(re.findall("UV_TORCH_BACKEND", README)) == 1


def test_what_paceline_says_of_itself_promises_no_target_on_a_gpu() -> None:
    first = re.search(r'^description = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.M)[1]  # type: ignore[index]
    for name in ("CITATION.cff", "containers/conda/recipe.yaml"):
        assert first in (ROOT / name).read_text(), name
    pages = README.partition("\n## ")[0], (ROOT / "docs/index.md").read_text().partition("\n## ")[0]
    for text in (first, format_overview(), *pages):
        said = " ".join(text.split())
        assert re.search(r"[Nn]o recipe has been trained to its target on a GPU", said), said
        assert "many GPU" not in said


def test_regions_of_own_photos_are_those_of_the_recipes() -> None:
    text = (ROOT / "docs/how-to/train-on-your-own-images.md").read_text()
    for name, words in (("finetune-cpu", "sample {} regions"), ("finetune", "already sample {}")):
        for network in ("maskrcnn", "fasterrcnn"):
            assert words.format(RECIPES[f"{network}-{name}"]().model.roi.samples_per_image) in text


def test_what_takes_an_exported_file_is_named() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong = r"which every verb takes|that every verb takes|needs no torch\. So does|paceline's verbs take"
    assert not [page.name for page in pages if re.search(wrong, page.read_text())]
    for name in ("tutorials/first-model", "how-to/export"):
        text = " ".join((ROOT / "docs" / f"{name}.md").read_text().split())
        assert "`predict`, `eval`, `serve`, `plan`, `export`, `weights inspect` and `train --weights` accept" in text


def test_json_is_a_switch_in_all_commands() -> None:
    other = [
        path
        for path in (ROOT / "paceline").rglob("*.py")
        if re.search(r"^    json: (?!bool|Annotated\[bool)", path.read_text(), re.M)
    ]
    assert other == []
