"""What a page names is there: pages and results as links, files, flags, recipes; and a row's numbers stand in the folder it names."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from paceline.cli.main import VERBS
from paceline.config.foreign_flags import SWITCHES, find_equivalent
from paceline.config.recipes import RECIPES
from paceline.config.system import System

ROOT = Path(__file__).parents[1]
# The generated pages of commands, fields, and Python are compared with the code by tests/scripts/test_reference_pages.py.
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
GUIDES += sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name not in ("cli", "fields", "generated"))
RESULTS = sorted((ROOT / "results").rglob("*.md"))
BLOCK = re.compile(r"^( *)```.*?^\1```", flags=re.M | re.S)
SPEC = importlib.util.spec_from_file_location("reference_pages", ROOT / "scripts" / "reference_pages.py")
PAGES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGES)
FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")
RECIPE = re.compile(r"(?:resnet50|ssd|maskrcnn|fasterrcnn)-[a-z0-9-]+[a-z0-9]")
OURS = re.compile(r"(?:paceline|tests|scripts|benchmarks|examples|containers)/[\w./-]+\.\w+")
WEIGHTS = json.loads((ROOT / "paceline" / "models" / "weights" / "published.json").read_text())
# Flags of our scripts, of launchers, and of the originals.
OTHERS = {"--nightly", "--oldest", "--only", "--sample", "--log", "--lowest", "--values"}
OTHERS |= {"--gpus-per-task", "--cpu-bind", "--map-by", "--requeue", "--mode", "--max-num-gt", "--resume"}
DENIED = re.compile(r"no GPU (has|was)|never (been )?run on a GPU|Nothing here is measured yet|has never run there", re.I)
SPEED = re.compile(r"times (as fast|the (best|images))|times in bf16|(images|photos)/s|\bCPU s\b|\b\d+ s on|\d ms\b")
PROCESSOR = re.compile(r"AVX-?\d|H200|instruction set not recorded|\(bf16\)")
NUMBER = re.compile(r"(?<![\w.,-])\d[\d,.]*\d|(?<![\w.,-])\d(?![\w.])")


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return BLOCK.sub("", page.read_text())


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", GUIDES + RESULTS, ids=name_of)
def test_a_page_that_another_names_is_linked(page):
    bare = re.findall(r"(?<!\[)`((?:docs/[\w/-]+\.md|results/[a-z0-9][\w-]*))/?`(?!\])", prose(page))
    named = [ROOT / name / ("" if name.endswith(".md") else "README.md") for name in bare]
    assert not [name for name, there in zip(bare, named) if there.is_file() and there != page]


def rows_of_results() -> list[tuple[str, list[str], str]]:
    """(what, folders, measured) of each row of results/README.md."""
    found = []
    for row in (ROOT / "results" / "README.md").read_text().splitlines():
        cells = row.strip("| ").split(" | ")
        if len(cells) == 3 and (folders := re.findall(r"\]\(([\w-]+)/README\.md\)", cells[2])):
            found.append((cells[0], folders, cells[1]))
    return found


def missing_numbers(claim: str, folders: list[str]) -> list[str]:
    """The numbers of a claim that no page of these folders has; a link's address and a date are none."""
    text = " ".join(page.read_text() for folder in folders for page in (ROOT / "results" / folder).rglob("*.md"))
    claim = re.sub(r"\]\([^)]*\)|\d{4}-\d\d-\d\d|`[^`]*`", "", claim)
    return [one for one in NUMBER.findall(claim) if not re.search(rf"(?<![\d.,]){re.escape(one)}(?!\d|[.,]\d)", text)]


@pytest.mark.parametrize(("what", "folders", "measured"), rows_of_results())
def test_each_number_of_a_claim_stands_in_the_folder_that_it_names(what, folders, measured):
    assert not missing_numbers(measured, folders), what


def test_each_number_of_the_readmes_claims_stands_in_the_folder_that_it_names():
    results = prose(GUIDES[0]).partition("\n## Results\n")[2].partition("\n## ")[0]
    claims = re.split(r"\n\n|^- ", results, flags=re.M)[1:]
    assert len(claims) > 3 and len(rows_of_results()) > 20
    for claim in claims:
        assert not missing_numbers(claim.partition(":")[2], re.findall(r"\]\(results/([\w-]+)/", claim)), claim


def test_another_number_would_be_noticed():
    what, folders, measured = rows_of_results()[0]
    assert missing_numbers(measured.replace("0.369", "0.370"), folders) == ["0.370"], what


def measured_on_a_gpu() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "results" / "gpu" / "runs.jsonl").read_text().splitlines()]


def test_the_table_of_support_has_each_accelerator_and_names_the_gpu_that_was_measured():
    text = (ROOT / "docs/reference/platform-support.md").read_text()
    kinds = get_args(get_type_hints(System)["device"])
    assert len(kinds) > 4 and not [kind for kind in kinds if f"`{kind}`" not in text]
    (row,) = (line for line in text.splitlines() if line.startswith("| NVIDIA |"))
    device = measured_on_a_gpu()[0]["device"].partition(",")[0].removeprefix("NVIDIA ")
    assert device in row and "no GPU" not in row


def test_speeds_of_the_gpu_page_are_those_of_its_runs():
    text = (ROOT / "results" / "gpu" / "README.md").read_text()
    missing, seen = [], 0
    for line in measured_on_a_gpu():
        if line.get("item", "")[:4] not in ("all-", "ssd-"):
            continue
        rates = line.get("images_per_second") or line["images_per_second_before_the_rounds"]
        for form, rate in rates.items():
            seen += 1
            missing += [] if f"{rate:,.0f}" in text or f"{rate:,.1f}" in text else [(form, rate)]
    assert seen > 20 and not missing


def denials(text: str) -> list[str]:
    """Sentences that deny that a GPU has run what one H200 has run (results/gpu)."""
    return [line for line in text.splitlines() if DENIED.search(line)]


def test_no_text_says_that_no_gpu_was_used():
    files = [*GUIDES, *RESULTS, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.json")]
    files += [path for kind in ("py", "json") for path in (ROOT / "paceline").rglob(f"*.{kind}")]
    wrong = [f"{name_of(path)}: {line}" for path in files for line in denials(path.read_text())]
    assert len(files) > 500 and not wrong, "\n".join(wrong)
    assert denials("graph: bool = False  # replay it; no GPU has run it yet")
    assert denials("**They have never run on a GPU.**") and not denials("no GPU is needed")


def unnamed_processors(claims: list[str]) -> list[str]:
    """Claims of speed without an instruction set, a GPU, or the statement that the run did not record it."""
    return [claim for claim in claims if SPEED.search(claim) and not PROCESSOR.search(claim)]


def test_claims_of_speed_name_the_processor_and_the_instruction_set():
    results = prose(GUIDES[0]).partition("\n## Results\n")[2].partition("\n## ")[0]
    claims = [" ".join(claim.split()) for claim in re.split(r"\n\n|^- ", results, flags=re.M)[1:]]
    claims += [f"{what} | {measured}" for what, _, measured in rows_of_results()]
    assert len([claim for claim in claims if SPEED.search(claim)]) > 15
    assert not unnamed_processors(claims)
    assert unnamed_processors(["Mask R-CNN's step: 1.34 to 1.39 times as fast as torchvision's"])


def code_of(page: Path) -> list[str]:
    """What stands in backticks in a page's prose."""
    return [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", prose(page))]


def flags_of_all_verbs() -> set[str]:
    """Each flag of each verb, its kinds and each workload's recipes, from --help."""
    texts = [PAGES.page_of_verb(verb) for verb in VERBS] + [PAGES.help_of("train", one) for one in PAGES.WHOLE.values()]
    return {flag for text in texts for flag in FLAG.findall(text)}


def wrong_flags(text: str, known: set[str]) -> list[str]:
    """Flags of some code that no verb has; `--model` stands for all of `--model.depth` and its kind."""
    text, mine = text.partition(" -- ")[0], text.startswith("paceline ")  # what follows is an engine's
    known = known | {flag.rpartition(".")[0] for flag in known} | {"--help", "--help-all"} | (set() if mine else OTHERS)
    # Help has --system.compile alone where that is off.
    return [flag for flag in FLAG.findall(text) if flag not in known and re.sub(r"(--|\.)no-", r"\1", flag) not in known]


def test_flags_recipes_and_files_that_pages_name_in_their_text_are_there():
    flags, names = flags_of_all_verbs(), {*RECIPES, *WEIGHTS}
    wrong, seen = [], 0
    for page in GUIDES:
        if page.parent.name == "migration":  # theirs beside ours: tests/tools/test_migration_pages.py reads each row
            continue
        for code in code_of(page):
            seen += 1
            # Container engines' own flags are what docs/how-to/cluster/containers.md is about.
            flagged = code.startswith("paceline ") or (code.startswith("--") and page.name != "containers.md")
            lost = wrong_flags(code, flags) if flagged else []
            lost += [word for word in code.split() if RECIPE.fullmatch(word) and word not in names]
            lost += [code] if OURS.fullmatch(code) and not (ROOT / code).exists() else []
            wrong += [f"{name_of(page)}: {code}: {one}" for one in lost]
    assert not wrong and seen > 2000, "\n".join(sorted(set(wrong)))


def test_another_flag_recipe_or_file_would_be_noticed():
    assert wrong_flags("--sampler class-balanced", {"--sampler", "--model.depth"}) == []
    assert wrong_flags("--samplr balanced", {"--sampler"}) == ["--samplr"]
    assert wrong_flags("--model and --requeue", {"--model.depth"}) == []
    assert wrong_flags("paceline train ssd --requeue", {"--sampler"}) == ["--requeue"]
    assert RECIPE.fullmatch("ssd-fientune") and OURS.fullmatch("scripts/no_such.py")


def test_flags_of_other_programs_are_ours_as_a_refusal_says():
    rows = re.findall(
        r"^\| (`[a-z].*?) \| (`--.*) \|$", (ROOT / "docs/how-to/migrate-from-other-trainers.md").read_text(), flags=re.M
    )
    assert len(rows) > 12
    for theirs, ours in rows:
        for words, there in zip(theirs.split(";"), ours.split(";")):
            for word in re.findall(r"`([a-z0-9-]+)`", words):
                ours_for, _ = find_equivalent(word, re.findall(r"--[\w.-]+", there))
                switch = SWITCHES.get(word, ((),))[0]
                assert f"`--{word}`" in there or ours_for or any(flag in there for flag in switch), (word, there)
