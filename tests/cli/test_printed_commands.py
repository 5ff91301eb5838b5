"""Every command of ours in a message is carried out as it was printed, and each place that prints one is accounted for.

A place is (file, function, verb): a string with `paceline VERB`, or a call of `_utils/commands.py`. It is a *form* where its words
leave something to fill in (DIR, RUN, FILE), then the help of its verb has to name its flags; otherwise it has a situation here
(or in `preparing_situations.py`) whose message is produced and whose command is run, or an entry in ELSEWHERE with the test that
runs it, or in REASONS with why none can.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from preparing_situations import PREPARING, RAISED, Situation
from run_files import cut_after
from tiny_runs import command, without_report

import paceline
from paceline._utils.errors import DataError
from paceline.cli.main import VERBS

PACKAGE = Path(paceline.__file__).parent
# Calls that make a command, by their names.
MAKERS = (
    "format_command",
    "resume_command",
    "conversion_command",
    "repeat_command",
    "prepare_command",
    "box_command",
    "container_command",
)
PRINTED = re.compile(r"\bpaceline (?:--[a-z]+ )?(" + "|".join(VERBS) + r"|\{\w+\})(?![\w'])")
# Words that stand for something of the reader's.
TO_FILL_IN = re.compile(r"(?<![\w{/.-])[A-Z][A-Z_]{2,}(?![\w}])|\.\.\.|a\|b|\|")


def recipe_file(here: Path, data: Path) -> str:
    """A recipe of one's own that trains in a blink, in a file whose name wants quotes."""
    changes = "{" + ", ".join(f"{name!r}: {value}" for name, value in (
        ("model.depth", 10), ("model.width", 8), ("input.image_size", 32), ("input.eval_crop_size", 32),
        ("input.eval_resize_size", 36),
        ("global_batch_size", 8), ("optim.lr", 0.01),
    )) + "}"  # fmt: skip
    text = (
        "from paceline.config.recipe import override\nfrom paceline.config.recipes import RECIPES\n\n\n"
        f"def small():\n    return override(RECIPES['classify-demo'](), {changes})\n"
    )
    (here / "my recipes.py").write_text(text)
    return "./my recipes.py:small"


def unfinished(here: Path, data: Path) -> Path:
    """A copy of the run `RUN`, as a kill leaves it."""
    return cut_after(here / "a run", 2)


def edited(here: Path, data: Path) -> list[object]:
    file = here / "a run" / "run.json"
    facts = json.loads(file.read_text())
    facts["options"]["log_every"] = 1
    file.write_text(json.dumps(facts))
    return ["eval", "a run"]


SITUATIONS = {
    **PREPARING,
    "a speed that is not known": Situation(
        (("tools/estimate/summary.py", "unknown_rows", "train"), ("tools/estimate/summary.py", "unknown_rows", "plan")),
        lambda here, data: ["plan", recipe_file(here, data), "--system", "cpu"],
        0,
        (0, 0),
    ),
    "a speed that is not known, of a run on data": Situation(
        (),
        lambda here, data: ["plan", "a run/run.json", "--system", "gaudi8", "--system.device-name", "none", "--world-size", "1"],
        0,
        (0, 0),
    ),
    "a run of another recipe": Situation(
        (("_utils/commands.py", "resume_command", "train"), ("training/previous_run.py", "how_to_extend", "resume_command")),
        lambda here, data: ["train", "ssd-demo", "--output-dir", unfinished(here, data)],
        2,
        (0,),
    ),
    "a run.json that was edited": Situation((), edited, 2, (0,)),
    "a verb that is none": Situation((), lambda here, data: ["trian"], 2, (2,)),
    "a flag that is none": Situation(
        (("cli/flags.py", "_check_names", "{}"),),
        lambda here, data: ["train", "classify-demo", "--nonsense", "1"],
        2,
        (0,),
    ),
}  # fmt: skip

# FILE, TEST -> the places whose commands it carries out.
ELSEWHERE = {
    (
        "oracle/test_detectron2_pixels.py",
        "test_a_file_that_does_not_say_its_colours_is_refused_with_both_commands_and_each_of_them_gives_its_outputs",
    ): (("models/weights/weight_file.py", "open_weights", "conversion_command"),),
    ("cli/test_going_on.py", "test_a_run_whose_folder_nobody_named_says_where_it_lies_and_its_parting_command_goes_on"): (
        ("training/eval_history.py", "how_to_resume", "resume_command"),
    ),
    ("cli/test_going_on.py", "test_a_report_that_cannot_be_written_changes_nothing_of_how_a_run_ended"): (
        ("api.py", "report_run", "report"),
    ),
    ("cli/test_going_on.py", "test_a_run_goes_on_with_the_validation_images_that_its_best_was_chosen_by"): (
        ("training/resume.py", "check_start", "eval"),
    ),
    ("data/test_download_verb.py", "test_an_interrupt_says_how_to_go_on"): (
        ("cli/commands/download.py", "run", "download"),
    ),
    ("data/test_download_verb.py", "test_one_command_ends_in_a_folder_to_train_on"): (
        ("cli/commands/download.py", "_carry_out", "prepare"),
        ("cli/commands/download.py", "_training", "train"),
    ),
    ("cli/test_pickled_weights.py", "test_the_command_that_converts_them_is_to_be_pasted_from_check_and_from_training"): (
        ("cli/commands/weights.py", "run_inspect", "conversion_command"),
        ("models/weights/formats/detect.py", "detect_format", "conversion_command"),
        ("models/weights/formats/detect.py", "conversion_command", "weights"),
    ),
    ("models/test_weights.py", "test_a_dict_under_another_name_is_named"): (
        ("models/weights/formats/detect.py", "_named", "conversion_command"),
    ),
    ("cli/test_any_weights.py", "test_what_no_network_answers_with_is_refused_in_a_line_and_nothing_is_written"): (
        ("models/weights/identify.py", "_refusal", "weights"),
    ),
    ("training/test_pretrained.py", "test_without_weights_it_is_refused_with_the_command_before_anything_is_opened"): (
        ("cli/commands/train.py", "run", "train"),
        ("cli/commands/launch.py", "run", "launch"),
    ),
    ("data/test_lint.py", "test_train_lint_ends_where_a_result_would_be_spoilt"): (
        ("data/checks/lint.py", "require_usable", "data"),
    ),
    ("data/test_exports.py", "test_a_zip_with_boxes_is_refused_with_commands_that_prepare_it"): (
        ("data/containers/label_exports.py", "unpack_first", "prepare"),
    ),
    ("data/test_named_files.py", "test_a_classifier_on_it_gets_the_command_of_a_detector"): (
        ("data/prepare/auto_prepare.py", "prepare_if_needed", "train"),
    ),
    ("data/test_named_files.py", "test_each_kind_of_data_for_the_other_kind_of_recipe_gets_the_command_of_its_own"): (
        ("data/prepare/auto_prepare.py", "_annotated_photos", "train"),
        ("data/prepare/auto_prepare.py", "_class_photos", "train"),
    ),
    ("data/test_named_files.py", "test_a_set_of_named_files_is_called_by_its_own_folder"): (
        ("models/object_predictions.py", "require_masks", "train"),
    ),
    ("data/test_label_tools.py", "test_yolo_labels_without_a_data_yaml_get_one_to_paste_that_prepares"): (
        ("data/formats/label_tools.py", "_known_yolo", "prepare"),
    ),
    ("data/test_label_tools.py", "test_a_coco_json_under_another_name_gets_the_command_that_names_it"): (
        ("data/formats/label_tools.py", "_named_command", "prepare"),
    ),
    ("data/test_label_tools.py", "test_prepare_coco_on_another_layout_prints_the_command_that_reads_it"): (
        ("data/formats/layouts.py", "read_source", "prepare"),
    ),
}
MENUS = ("tasks", "recipes", "configs", "systems", "decoders")
REASONS = {
    ("models/object_task.py", "_limits", "repeat_command"): "prepares annotations that were corrected first",
    (
        "cli/commands/translate.py",
        "run",
        "translate",
    ): "an example of what to quote; tests/cli/test_translate.py types such lines",
    ("cli/commands/download.py", "_by_account", "prepare"): "wants ImageNet's archives, whole",
    ("data/formats/published_sets.py", "check_flat_val", "prepare"): "wants ImageNet's development kit",
    ("data/formats/published_sets.py", "_check_class_names", "prepare"): "names a verb, in a sentence",
    ("cli/commands/data.py", "run_info", "prepare"): "--help, in a sentence",
    ("cli/commands/doctor.py", "run", "train"): "README's first command",
    ("cli/main.py", "format_overview", "train"): "README's first command",
    ("cli/help.py", "print_help", "{}"): "the usage of a verb; tests/cli/test_help.py asks each for it",
    ("cli/help.py", "_screen", "{}"): "--help of a verb; tests/cli/test_help.py asks each for it",
    ("cli/commands/container.py", "_build", "container"): "wants a container engine",
    ("cli/commands/report.py", "run", "report"): "an example of a folder's name",
    (
        "training/run_arguments.py",
        "format_workload_command",
        "--task-file",
    ): "runs a Python file: tests/cli/test_own_workload.py types it",
    ("tools/compare/bisect.py", "again", "compare"): "runs a Python file: tests/cli/test_own_workload.py types it",
    ("models/weights/identify.py", "recipe_of_run", "eval"): "runs a Python file: tests/cli/test_own_workload.py types it",
    ("cli/commands/weights.py", "_download", "weights"): "wants published weights",
    ("cli/commands/weights.py", "_download", "conversion_command"): "wants published weights",
    ("cli/commands/weights.py", "run_inspect", "weights"): "a form: timm/NAME is to be filled in",
    ("models/weights/identify.py", "_refusal", "train"): "a form: timm/NAME is to be filled in",
    ("launch/doctor/local_checks.py", "read_host", "doctor"): "its output goes into a variable of the host",
    ("tools/qualify/judgment.py", "judge_ranks", "doctor"): "who found it, before a colon",
    ("tools/qualify/judgment.py", "_input", "data"): "names a verb, in a sentence",
    ("tools/qualify/judgment.py", "_input", "bench"): "a kind of measurement, in a sentence",
    ("tools/mlperf/logs.py", "mllog_lines", "mlperf"): "names a verb, in a sentence",
    ("models/weights/formats/detect.py", "_torch", "weights"): "names a verb, in a sentence",
    (
        "training/small_data.py",
        "check_image_count",
        "train",
    ): "wants pretrained weights; tests/training/test_small_data.py holds it",
    ("cli/commands/plan.py", "_opened", "train"): "as it was typed; tests/cli/test_auto_runs.py types what train prints so",
    ("data/storage/staged_copy.py", "_require_room", "data"): "names a command, in a sentence",
    ("training/staged_data.py", "open_staged_copy", "data"): "tests/data/test_staged_copy.py damages such a copy",
    ("api.py", "report_run", "predict"): "IMAGES are the user's; tests/cli/test_told.py reads it with the built-in ones",
}


@cache
def strings_and_calls(path: Path) -> list[tuple[str, ast.expr]]:
    """(function, node) of each string that is no docstring, and of each call of a maker of commands."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(body[0].value)
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list) and body and isinstance(body[0], ast.Expr)
    }

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr]]:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else function
            called = isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in MAKERS
            string = isinstance(child, ast.JoinedStr) or (isinstance(child, ast.Constant) and type(child.value) is str)
            if (called or string) and id(child) not in skipped:
                assert isinstance(child, ast.expr)
                yield inside, child
            if not isinstance(child, ast.Constant):
                yield from walk(child, inside)

    return list(walk(tree, ""))


def spelled(node: ast.expr) -> str:
    """A string as its reader sees it, with {} where a value comes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{x}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) else ""


def places() -> dict[tuple[str, str, str], str]:
    """Each place that prints a command which is no form, with what it prints."""
    found: dict[tuple[str, str, str], str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for function, node in strings_and_calls(path):
            if isinstance(node, ast.Call):
                words = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
                maker = node.func.id if isinstance(node.func, ast.Name) else ""
                if not any(TO_FILL_IN.search(word) for word in words):
                    found[name, function, words[0] if maker == "format_command" and words else maker] = ast.unparse(node)
                continue
            text = spelled(node)
            for call in PRINTED.finditer(text):
                verb, rest = re.sub(r"\{\w+\}", "{}", call[1]), re.split(r"[`\n;]|, | \(", text[call.end() :])[0]
                form = TO_FILL_IN.search(rest) or rest.strip(" .:)`") == ""
                if not form and verb == "list":
                    found[name, function, f"list {rest.split()[0].strip('`).,')}"] = call[0] + rest
                elif not form and function:  # what stands outside of functions is help
                    found[name, function, verb] = call[0] + rest
    return found


def test_each_place_that_prints_a_command_has_a_situation_or_a_reason():
    run = (*(one.places for one in SITUATIONS.values()), *(named for named, _ in RAISED.values()), *ELSEWHERE.values())
    known = {place for named in run for place in named} | set(REASONS)
    found = places()
    menus = {f"list {menu}" for menu in MENUS}
    lacking = {place: text for place, text in found.items() if place not in known and place[2] not in menus}
    assert not lacking, "\n".join(f"{place}: {text}" for place, text in lacking.items())
    assert not known - set(found), f"these print no command any more: {known - set(found)}"
    for file, test in ELSEWHERE:
        assert f"\ndef {test}(" in (PACKAGE.parent / "tests" / file).read_text(), f"{file} has no {test}"


@pytest.mark.parametrize("menu", MENUS)
def test_a_menu_that_messages_name_is_there(menu, capsys):
    assert command(capsys, "list", menu).code == 0


def commands_in(text: str) -> list[list[str]]:
    """The words of each command in a message: in backticks, or behind two spaces (or `: `) up to the line's end."""
    found = re.findall(r"`paceline ([^`]*)`|(?:^|  |: )paceline (\S.*)$", text, flags=re.M)
    return [shlex.split(ticked or bare) for ticked, bare in found]


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_printed_command_does_what_its_message_says(name, resnet_run, tmp_path, capsys, monkeypatch):
    situation = SITUATIONS[name]
    without_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(resnet_run.folder, tmp_path / "a run", symlinks=True)
    said = command(capsys, *situation.words(tmp_path, resnet_run.data))
    assert said.code == situation.code, said
    printed = commands_in(said.out + said.err)
    assert len(printed) == len(situation.follow), (printed, said)
    for words, code in zip(printed, situation.follow):
        then = command(capsys, *words)
        assert then.code == code, (words, then)


@pytest.mark.parametrize("name", RAISED)
def test_a_command_in_an_error_that_no_verb_comes_to_repairs_what_it_is_about(
    name, class_photos, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as raised:
        RAISED[name][1](tmp_path, class_photos)
    (words,) = commands_in(str(raised.value))
    assert command(capsys, *words).code == 0, words


def helps(capsys: pytest.CaptureFixture[str], verb: str, kind: str) -> str:
    """The help of a verb, of its kind where the next word is one, or of every kind where that is left open."""
    if verb == "prepare" and not kind.isalpha():
        kinds: tuple[tuple[str, ...], ...] = (("folder",), ("coco",), ("zip",))
    elif verb in ("train", "eval", "plan"):
        kinds = (("classify-demo",), ())
    else:
        kinds = ((kind,),) if kind.isalpha() and kind.islower() else ((),)
    return "".join((said := command(capsys, verb, *one, "--help-all")).out + said.err for one in kinds)


def test_the_flags_of_commands_to_fill_in_are_flags_of_their_verbs(capsys):
    wrong, looked_at = [], 0
    help_of = cache(partial(helps, capsys))
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in (node for _, node in strings_and_calls(path) if not isinstance(node, ast.Call)):
            text = spelled(node)
            for call in PRINTED.finditer(text):
                rest = re.split(r"[`\n;]|, | \(|  ", text[call.end() :])[0]
                flags = set(re.findall(r"(?<!\S)--[a-z][a-z.-]*", rest)) - {"--help"}
                if TO_FILL_IN.search(rest) and flags and call[1] in VERBS:
                    known = help_of(call[1], next(iter(rest.split()), ""))
                    wrong += [(path.name, call[0] + rest, flag) for flag in flags if not re.search(flag + r"\b", known)]
                    looked_at += 1
    assert not wrong and looked_at > 10, wrong
