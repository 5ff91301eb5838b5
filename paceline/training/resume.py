"""Where a run starts: fresh, or at its newest whole checkpoint, with the evaluations in its events.

Opening a data set may take minutes, so everything that can be refused without it is refused first (`find_resume_point`), the rest
afterwards (`check_start`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.names import flatten
from paceline._utils.reporter import Reporter
from paceline._utils.text import abbreviate
from paceline._utils.user_code import is_same_workload
from paceline.config.model_card import make_card
from paceline.config.plan import steps_in_epoch
from paceline.config.recipe import NO_FLAG, Recipe
from paceline.config.run import RunSpec, with_defaults
from paceline.config.run_length import LENGTH, count_recipe_steps
from paceline.data.index.splits import format_fold
from paceline.distributed.comm.world import DistContext, broadcast_from_main
from paceline.models.registry import get_workload
from paceline.training.checkpoint.layout import BEST, link_step, step_name
from paceline.training.checkpoint.read import find_newest_valid, load_checkpoint
from paceline.training.checkpoint.write import Snapshot
from paceline.training.eval_history import EvalHistory
from paceline.training.logging.events import read_events
from paceline.training.previous_run import SavedRun, how_to_extend, is_another
from paceline.training.request import Request
from paceline.training.state import check_snapshot, is_evaluation_due

# Differences of two recipes that a message lists.
MAX_KEYS = 5


@dataclass(frozen=True)
class ResumePoint:
    """Where a run starts: fresh, or from a checkpoint and the facts beside it."""

    standing: EvalHistory  # results of the evaluations so far
    seconds: float = 0.0  # wall-clock of the run before this process began
    snapshot: Snapshot | None = None  # None: fresh
    checkpoint: str = ""  # its name

    def pending(self, last_step: int) -> bool:
        """Whether an evaluation of its step comes first: one follows it, or this run ends there, and its result is not known."""
        facts = {} if self.snapshot is None else self.snapshot.facts
        follows = bool(facts) and (is_evaluation_due(facts) or facts["step"] >= last_step)
        return follows and self.standing.step != facts["step"]


def find_resume_point(
    was: SavedRun, request: Request, world: DistContext, reporter: Reporter, *, undecided: Collection[str]
) -> ResumePoint:
    """Find the newest whole checkpoint; every rank calls it, before the data are opened. Skipped checkpoints are warnings.

    request    of its recipe's fields that are set by hand a greater length and those of `eval` and `target` may be new
    undecided  dotted names of the recipe's fields that the data still decide: `check_start` compares them
    Raises CheckpointError, on rank 0 alone, when it belongs to another recipe; the others wait for rank 0.
    """
    recipe = request.recipe
    headline = get_workload(recipe.task).reporting.measured(recipe)[0]
    result = None if was.facts is None else find_newest_valid(was.path / "checkpoints", reporter, check_snapshot)
    if result is None:
        if was.facts is not None:
            reporter.warning(f"warning: {was.path} has no checkpoint yet. Training starts at step 0.")
        return ResumePoint(EvalHistory(headline))
    folder, snapshot = result
    journal = None
    if world.is_main:
        _check_recipe(was, snapshot.facts, request.name, recipe, request.given, undecided)
        journal = json.dumps(_journal(was.path, headline, snapshot.facts, reporter))
    standing, seconds = json.loads(broadcast_from_main(world, journal, "journal"))
    return ResumePoint(EvalHistory(**standing), seconds, snapshot, folder.name)


def check_start(was: SavedRun, start: ResumePoint, run: RunSpec, explicit: Collection[str]) -> None:
    """Check a resumed run against the open data, and the recipe that they decide.

    explicit  dotted names of the recipe's fields set by hand
    Raises CheckpointError when the checkpoint belongs to another recipe or to other data, or its evaluations scored other images.
    """
    if start.snapshot is None or was.facts is None:
        return
    facts, wanted = start.snapshot.facts, run_fingerprint(run)
    data = run.provenance["data"]
    _check_recipe(was, facts, run.name, run.recipe, explicit)
    if any(facts[name] != wanted[name] for name in ("data_hash", "train_images")):
        raise CheckpointError(
            f"{was.path}: the training images differ: {facts['train_images']:,}{_fold(was.facts.data)} in the run, "
            f"{wanted['train_images']:,}{_fold(data)} in {data['root']}. Resume with the original "
            "--data, --max-train-images, and --fold. Or start a new run from the weights:\n"
            "  --weights RUN/checkpoints/last --output-dir NEW_RUN"
        )
    scored, now = was.facts.plan.get("val_images"), run.plan.val_images
    if start.standing.step >= 0 and scored != now:
        limit = was.facts.options.get("max_val_images")
        flag = f"with --max-val-images {abbreviate(limit)}" if limit else "without --max-val-images"
        raise CheckpointError(
            f"{was.path}: the evaluations of this run use {abbreviate(scored)} validation images, and this command uses {now:,}. The "
            f"best checkpoint would be chosen by values that are not comparable. Resume {flag}. To evaluate on other images:\n"
            f"  paceline eval {shlex.quote(str(was.path))} --max-val-images {now}"
        )


def _fold(data: Mapping[str, Any]) -> str:
    words = format_fold(data.get("fold"))
    return f" in {words}" if words else ""


def _journal(path: Path, headline: str, facts: Mapping[str, Any], reporter: Reporter) -> tuple[dict, float]:
    """-> (the evaluations' results up to the checkpoint of these facts, the run's seconds), as far as its events have them."""
    file, step = path / "events.jsonl", facts["step"]
    events = [event for event in read_events(file) if event["step"] <= step and event["event"] != "end"]
    standing, best = EvalHistory.of_events(headline, events), link_step(path / "checkpoints", BEST)
    known = {event["step"] for event in events if event["event"] == "eval"}
    if not file.exists():
        reporter.warning(
            f"warning: {file} not found. The results before {step_name(step)} are lost; the best checkpoint is chosen from now on."
        )
    elif best is not None and best < step and best not in known and _was_evaluated(path, best):
        # The best of the others is not as good, and may be deleted already.
        reporter.warning(
            f"warning: {file} has no results of {step_name(best)}, the best checkpoint. `best` keeps it until a later evaluation "
            "is better than the other results."
        )
        standing.best_step = -1
    clocks = [facts["seconds"], *(event["seconds"] for event in events)]
    return asdict(standing), max(filter(isfinite, clocks), default=0.0)


def _was_evaluated(path: Path, step: int) -> bool:
    try:
        facts = load_checkpoint(path / "checkpoints" / step_name(step), check_snapshot).facts
    except CheckpointError:
        return False
    return is_evaluation_due(facts)


def _check_recipe(
    was: SavedRun,
    facts: Mapping[str, Any],
    name: str,
    recipe: Recipe,
    explicit: Collection[str],
    undecided: Collection[str] = (),
) -> None:
    """Compare a recipe with that of a checkpoint of these facts."""
    workload = get_workload(recipe.task)
    template = Recipe(task="", model=workload.model, input=workload.input)
    saved, now = with_defaults(facts["recipe"], template), asdict(recipe)
    may_differ = [field for field in explicit if field.partition(".")[0] in ("eval", "target")] + [*undecided, NO_FLAG]
    if is_same_workload(str(saved["task"]), recipe.task):
        may_differ.append("task")
    if set(LENGTH) & set(explicit) - set(undecided):
        # By the run's own number of images: the command's data have as many, or are refused.
        per_epoch = steps_in_epoch(facts["train_images"], recipe.global_batch_size, recipe.epoch_rounding)
        counts = {"steps_per_epoch": per_epoch, "global_batch_size": recipe.global_batch_size}
        begun, requested = (count_recipe_steps(one, counts) for one in (saved, now))
        if requested < begun:
            raise CheckpointError(
                f"{was.path}: the run was started with {begun:,} steps, and a resumed run must not be shorter: got {requested:,}. "
                f"To end it earlier, set --max-steps {requested}"
            )
        may_differ += LENGTH
    check_same_recipe(
        saved,
        now,
        ignore=tuple(may_differ),
        summary="" if was.facts is None or was.facts.name == name else is_another(was.path, was.facts, name),
        go_on=how_to_extend(was.path, str(saved["task"])),
    )


def run_fingerprint(run: RunSpec) -> dict[str, Any]:
    """A checkpoint's facts about its run: recipe and data decide whether another run may resume from it."""
    data = run.provenance["data"]
    facts = {"recipe": asdict(run.recipe), "data_hash": data["hash"], "train_images": data["train_images"]}
    return json.loads(json.dumps(facts))


def make_cards(run: RunSpec, step: int) -> dict[str, str]:
    """What a checkpoint's files of weights say of their run, by group; {} where a name in it is none that a card takes."""
    facts = run.record().as_dict()
    try:
        average = {"average": make_card(facts, step=step)} if run.recipe.ema_decay else {}
        return {"model": make_card(facts, step=step, **({"averaged": False} if average else {})), **average}
    except PacelineError:
        return {}


def check_same_recipe(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    ignore: tuple[str, ...] = (),
    summary: str = "",
    go_on: str = "Resume with the recipe of the checkpoint.",
) -> None:
    """Check that a run is resumed with its checkpoint's recipe.

    saved, now   recipes as nested dicts; tuples and lists count as equal
    ignore       dotted keys, with all that is below them, that may differ
    summary      the message in place of the keys where more than MAX_KEYS differ; empty lists the first of them
    go_on        how the run resumes with its own recipe
    Raises CheckpointError listing differing keys with both values.
    """
    was, want = flatten(json.loads(json.dumps(saved))), flatten(json.loads(json.dumps(now)))
    lines = []
    for key in sorted(was.keys() | want.keys()):
        skipped = any(key == name or key.startswith(f"{name}.") for name in ignore)
        if not skipped and (key not in was or key not in want or was[key] != want[key]):
            lines.append(f"\n  {key}: {_show(was, key)} in the checkpoint, {_show(want, key)} now")
    if not lines:
        return
    if len(lines) > MAX_KEYS and summary:
        raise CheckpointError(f"{summary} {go_on}")
    more = f"\n  and {len(lines) - MAX_KEYS} more" if len(lines) > MAX_KEYS else ""
    raise CheckpointError(
        f"the checkpoint was trained with a different recipe.{''.join(lines[:MAX_KEYS])}{more}\n{go_on}\n"
        "Or start a new run from the weights:  --weights RUN/checkpoints/last --output-dir NEW_RUN"
    )


def _show(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "absent"
