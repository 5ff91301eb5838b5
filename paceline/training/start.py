"""Where a run starts: anew, or at its newest whole checkpoint, with what its events know of it.

Opening a data set may take minutes, so whatever can be refused without it is refused first (`find_start`), the rest afterwards
(`check_start`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from paceline.checkpoint.layout import BEST, link_step, step_name
from paceline.checkpoint.read import check_same_recipe, load_checkpoint, newest_valid
from paceline.checkpoint.snapshot import Snapshot
from paceline.config.errors import CheckpointError
from paceline.config.length import LENGTH, length_in_steps
from paceline.config.plan import steps_in_epoch
from paceline.config.printable import short
from paceline.config.python_file import same_workload
from paceline.config.recipe import NO_FLAG, Recipe
from paceline.config.run import Run, with_defaults
from paceline.log.events import read_events
from paceline.ranks.exchange import from_main
from paceline.ranks.world import World
from paceline.tasks.workloads import workload_of
from paceline.training.checkpoint_facts import check_snapshot, evaluates
from paceline.training.going_on import how_to_go_on, is_another
from paceline.training.saved_run import SavedRun
from paceline.training.standing import Standing


@dataclass(frozen=True)
class Start:
    """Where a run starts: anew, or from a checkpoint and what is known beside it."""

    standing: Standing  # what the evaluations so far have found
    seconds: float = 0.0  # wall-clock of the run before this process began
    snapshot: Snapshot | None = None  # None: anew
    checkpoint: str = ""  # its name

    def pending(self, last_step: int) -> bool:
        """Whether an evaluation of its step comes first: one follows it, or this run ends there, and nothing says what it found."""
        facts = {} if self.snapshot is None else self.snapshot.facts
        follows = bool(facts) and (evaluates(facts) or facts["step"] >= last_step)
        return follows and self.standing.step != facts["step"]


def find_start(
    was: SavedRun,
    name: str,
    recipe: Recipe,
    given: Collection[str],
    world: World,
    say: Callable[[str], None],
    *,
    undecided: Collection[str],
) -> Start:
    """Where the run starts: at its newest checkpoint that is whole; every rank calls it, before the data are opened.

    name       the recipe's name
    given      dotted names of the recipe's fields set by hand: a greater length and fields of `quality` may be new
    say        is told of checkpoints that are skipped
    undecided  dotted names of the recipe's fields that the data are still to decide: `check_start` compares them
    Raises CheckpointError, on rank 0 alone, when it belongs to another recipe; the others wait for what rank 0 knows.
    """
    headline = workload_of(recipe.task).headline
    found = None if was.facts is None else newest_valid(was.path / "checkpoints", say, check_snapshot)
    if found is None:
        if was.facts is not None:
            say(f"{was.path} has no checkpoint yet: starting over")
        return Start(Standing(headline))
    folder, snapshot = found
    told = None
    if world.is_main:
        _check_recipe(was, snapshot.facts, name, recipe, given, undecided)
        told = json.dumps(_journal(was.path, headline, snapshot.facts, say))
    standing, seconds = json.loads(from_main(world, told, "journal"))
    return Start(Standing(**standing), seconds, snapshot, folder.name)


def check_start(was: SavedRun, start: Start, run: Run, given: Collection[str]) -> None:
    """Refuse what only the open data could tell of a run that goes on: what they decide of its recipe, and themselves.

    given   as for `find_start`
    Raises CheckpointError when the checkpoint belongs to another recipe or to other data, or what was scored so far were other images.
    """
    if start.snapshot is None:
        return
    facts, wanted = start.snapshot.facts, fingerprint(run)
    _check_recipe(was, facts, run.name, run.recipe, given)
    if any(facts[name] != wanted[name] for name in ("data_hash", "train_images")):
        raise CheckpointError(
            f"{was.path} was begun on other training images ({facts['train_images']:,} there, "
            f"{wanted['train_images']:,} now, from {run.provenance['data']['root']}). Go on with the same --data and "
            "--limit-train, or start a new run (another --out) from its weights alone: --weights RUN/checkpoints/last"
        )
    scored, now = (was.facts or {})["plan"].get("val_images"), run.plan.val_images
    if start.standing.step >= 0 and scored != now:
        limit = (was.facts or {})["controls"].get("limit_val")
        flag = f"with --limit-val {short(limit)}" if limit else "without --limit-val"
        raise CheckpointError(
            f"{was.path}: its evaluations scored {short(scored)} validation images, and this command asks for {now:,}: the best "
            f"of all would be chosen by unlike numbers. Go on {flag}; "
            f"other images are scored by  paceline eval {shlex.quote(str(was.path))} --limit-val {now}"
        )


def _journal(path: Path, headline: str, facts: Mapping[str, Any], say: Callable[[str], None]) -> tuple[dict, float]:
    """-> (what the evaluations up to a checkpoint of these facts found, the run's seconds), as far as the events know."""
    file, step = path / "events.jsonl", facts["step"]
    events = [event for event in read_events(file) if event["step"] <= step and event["event"] != "end"]
    standing, best = Standing.of_events(headline, events), link_step(path / "checkpoints", BEST)
    known = {event["step"] for event in events if event["event"] == "eval"}
    if not file.exists():
        say(f"{file} is gone, and what was found before {step_name(step)} with it: the best is chosen from here on")
    elif best is not None and best < step and best not in known and _was_evaluated(path, best):
        # The best of the others is not as good, and may be deleted already.
        say(
            f"{file} has lost what was found of {step_name(best)}, the best: `best` stays there until a later evaluation beats "
            "the others"
        )
        standing.best_step = -1
    clocks = [facts["seconds"], *(event["seconds"] for event in events)]
    return asdict(standing), max(filter(isfinite, clocks), default=0.0)


def _was_evaluated(path: Path, step: int) -> bool:
    try:
        facts = load_checkpoint(path / "checkpoints" / step_name(step), check_snapshot).facts
    except CheckpointError:
        return False
    return evaluates(facts)


def _check_recipe(
    was: SavedRun,
    facts: Mapping[str, Any],
    name: str,
    recipe: Recipe,
    given: Collection[str],
    undecided: Collection[str] = (),
) -> None:
    """Compare a recipe with that of a checkpoint of these facts."""
    workload = workload_of(recipe.task)
    template = Recipe(task="", model=workload.model, input=workload.input)
    saved, now = with_defaults(facts["recipe"], template), asdict(recipe)
    may_differ = [field for field in given if field.startswith("quality.")] + [*undecided, NO_FLAG]
    if same_workload(str(saved["task"]), recipe.task):
        may_differ.append("task")
    if set(LENGTH) & set(given) - set(undecided):
        # As many images as the run was begun on: those of now are as many, or are refused.
        per_epoch = steps_in_epoch(facts["train_images"], recipe.global_batch, recipe.epoch_steps)
        counts = {"steps_per_epoch": per_epoch, "global_batch": recipe.global_batch}
        begun, asked = (length_in_steps(one, counts) for one in (saved, now))
        if asked < begun:
            raise CheckpointError(
                f"{was.path}: it was begun with {begun:,} steps, and a run that goes on can only become longer than "
                f"that, not {asked:,}. To end it sooner: --steps {asked}"
            )
        may_differ += LENGTH
    check_same_recipe(
        saved,
        now,
        ignore=tuple(may_differ),
        summary="" if (was.facts or {}).get("name") == name else is_another(was.path, was.facts or {}, name),
        go_on=how_to_go_on(was.path, str(saved["task"])),
    )


def fingerprint(run: Run) -> dict[str, Any]:
    """What a checkpoint says of its run: recipe and data decide whether another run may go on from it."""
    data = run.provenance["data"]
    facts = {"recipe": asdict(run.recipe), "data_hash": data["hash"], "train_images": data["train_images"]}
    return json.loads(json.dumps(facts))
