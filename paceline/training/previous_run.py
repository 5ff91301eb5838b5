"""What a run's folder says about its past: whether a new command resumes it, and what a resumed run keeps of its own run.json.

A run ends at its target, at its length, at --max-steps, at --max-time or by --patience. The same folder is resumed where the
command asks for more than that: each of the five that would end it at once is set otherwise.
Standard library and small readers only: a refusal must not wait for torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline._utils.commands import resume_command
from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.formatting import format_duration
from paceline._utils.platform import count_cpus
from paceline._utils.reporter import Reporter
from paceline._utils.user_code import is_same_workload
from paceline.config.constraints import convert_checked
from paceline.config.published import Submission
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, RunRecord, from_json, parse_time_budget, read_run, saved_system
from paceline.config.run_length import count_recipe_steps
from paceline.config.system import FORMS, MAX_THREADS, System
from paceline.models.metrics import format_targets, meets_targets
from paceline.training.auto_config import restore_choices
from paceline.training.logging.events import get_metrics, read_events

# Statuses of a run that did what it was asked: only more work is a reason to resume it.
ENDED = ("success", "ran_out", "stopped_early")


class FinishedError(PacelineError):
    """The run in `folder` is finished, and the command asks for no more."""

    def __init__(self, text: str, folder: Path) -> None:
        super().__init__(text)
        self.folder = folder


def load_previous_run(
    path: Path, name: str, recipe: Recipe, options: RunOptions, explicit: Collection[str], *, repeats: bool
) -> tuple[RunRecord, str]:
    """-> (run.json of the run in `path`, the status with which it ended; empty where it did not end).

    name    the recipe's name
    explicit  dotted names of the recipe's fields set by hand
    repeats whether recipe and options come from a run.json
    Raises FinishedError, with the ways to resume, where the command asks for no more than the run has; CheckpointError for a
    run of another task, fitted to another length, or where one is on data and the other synthetic; PacelineError where the folder
    cannot be read.
    """
    saved = read_run(path)
    task = str(saved.recipe.get("task"))
    if not is_same_workload(task, recipe.task):
        raise CheckpointError(f"{is_another(path, saved, name)} {how_to_extend(path, task)}")
    if options.synthetic != bool(saved.options.get("synthetic")):
        on = "data" if options.synthetic else "synthetic batches"
        raise CheckpointError(f"{path}: the run was trained on {on}. Choose another --output-dir.")
    events = read_events(path / "events.jsonl")
    ends = [event for event in events if event["event"] == "end"]
    ended = ends[-1]["status"] if ends and ends[-1]["status"] in ENDED else ""
    requested, had = restore_fitted_schedule(options), saved.rescaled_schedule.get("requested", "")
    if requested != had and (requested or not repeats):
        to = [f"scaled to {length}" if length else "not scaled" for length in (had, requested)]
        raise CheckpointError(
            f"{path}: the schedule of this run is {to[0]}, but the schedule of this command is {to[1]}. "
            f"{how_to_extend(path, task)}{_longer(saved, ended) if ended else ''}"
        )
    if not ended:
        return saved, ""
    if options.auto_config:
        own = restore_choices(saved, recipe, options, explicit, path)
        recipe, options = own.recipe, own.options
    end = ends[-1]
    scored = [event for event in events if event["event"] == "eval" and event["step"] == end["step"]]
    try:
        ways = _format_extend_options(end, get_metrics(scored[-1]) if scored else {}, saved, recipe, options, explicit)
    except (KeyError, TypeError, ValueError, ArithmeticError) as problem:
        raise PacelineError(f"{path}: run.json is not valid ({problem!r}). Choose another --output-dir.") from None
    if ways:
        raise FinishedError(
            f"--output-dir {options.output_dir or path}: the run is finished ({end['status'].replace('_', ' ')}: "
            f"{end.get('reason', '')}).\n"
            f"To continue it, add {', or '.join(ways)}. To start a new run, use another --output-dir, or none.",
            path,
        )
    return saved, end["status"]


def restore_fitted_schedule(options: RunOptions) -> str:
    """The flags that --rescale-schedule fits a schedule to; empty without it."""
    if not options.rescale_schedule:
        return ""
    return f"--max-steps {options.max_steps}" if options.max_steps else f"--max-time {options.max_time}"


def is_another(path: Path, saved: RunRecord, name: str) -> str:
    """The message that the run in `path` is none of the recipe `name`."""
    return f"{path}: this is a {saved.recipe.get('task')} run (recipe {saved.name}), not {name}."


def how_to_extend(path: Path, task: str) -> str:
    """The message with the command that resumes the run in `path`; task: its recipe's."""
    return f"To resume it:\n  {resume_command(path, task)}"


def _longer(saved: RunRecord, ended: str) -> str:
    """Flags that resume a run that has ended, for twice its length."""
    flag = "epochs" if saved.recipe.get("epochs") else "max_images"
    words = f" --{flag.replace('_', '-')} {2 * (saved.recipe.get(flag) or 0):g}"
    words += " --target" if ended == "success" else ""
    return words + (" --patience 0" if saved.options.get("patience") else "")


def _format_extend_options(
    end: Mapping[str, Any],
    metrics: Mapping[str, float],
    saved: RunRecord,
    recipe: Recipe,
    options: RunOptions,
    explicit: Collection[str],
) -> list[str]:
    """Changes to the command that would resume the run, in words; [] where it resumes as it is."""
    ways = []
    # Without the flag the run's own counts: the recipe's may have been left out for data that it was not set for.
    targets = recipe.target if "target" in explicit else saved.recipe["target"]
    if meets_targets(targets, metrics):
        ways.append(f"--target with another value than {format_targets(targets)} (without a value: no target)")
    length = count_recipe_steps(asdict(recipe), saved.plan)
    requested = min(length, options.max_steps or length)
    if options.rescale_schedule:  # its length is the number of steps that was found when it began
        length = requested = int(saved.plan["total_steps"])
    if end["step"] >= requested:
        if end["step"] < length:  # it may stand further than this command asks
            ways.append(f"--max-steps above {end['step']:,} (or 0 for all {length:,} steps)")
        elif options.rescale_schedule:
            ways.append("a higher --epochs or --max-images to `paceline train RUN/run.json --output-dir RUN`")
        else:
            flag = "epochs" if recipe.epochs else "max_images"
            most = max(getattr(recipe, flag), saved.recipe[flag])
            ways.append(f"--{flag.replace('_', '-')} above {most:g}")
            if requested < length:
                ways.append(f"--max-steps above {end['step']:,} (or 0 for no limit)")
    budget = 0.0 if options.rescale_schedule and not options.max_steps else parse_time_budget(options.max_time)
    if 0 < budget <= end["seconds"]:
        ways.append(
            f"--max-time above {options.max_time} (or remove it; all processes of the run have used "
            f"{format_duration(end['seconds'])})"
        )
    if 0 < options.patience <= end.get("evaluations_since_best", 0):
        ways.append(f"--patience above {options.patience} (or 0 for no limit)")
    return ways


@dataclass(frozen=True)
class SavedRun:
    """The run.json of a run that is resumed; a fresh run has none.

    path   its folder, for messages
    facts  its run.json; None for a fresh run
    """

    path: Path
    facts: RunRecord | None

    def system(self, wanted: System, *, explicit: Collection[str], world: int) -> System:
        """Return the system to run on: a resumed run keeps its own if the number of ranks is the same, so its bits stay the same.

        With another number of ranks, or if a flag sets the system, it keeps its precision unless a flag sets that too.

        explicit  fields that flags set. If they set the system, the number of images per forward that fitted into as much memory
                is kept (memory_probe.py)
        """
        if self.facts is None:
            return wanted
        saved = saved_system(self.facts, self.path)
        if saved.device != wanted.device:  # it moved to another kind of machine
            return wanted
        if "system.precision" not in explicit:
            scale = wanted.loss_scale if "system.loss_scale" in explicit else saved.loss_scale
            wanted = replace(wanted, precision=saved.precision, loss_scale=scale)
        kept = {name: getattr(saved, name) for name in FORMS if getattr(wanted, name) == "auto"}
        wanted = replace(wanted, **kept)
        if self.facts.world_size != world:
            return wanted
        if "system" not in explicit:
            return saved
        if "system.micro_batch_size" in explicit or saved.memory_gib != wanted.memory_gib:
            return wanted
        return replace(wanted, micro_batch_size=saved.micro_batch_size)

    def with_threads(self, system: System, *, explicit: bool, world: int) -> System:
        """`system` with a resumed run's number of compute threads, which decides the bits of its sums.

        explicit  whether this command names a number
        An automatic number stays automatic with another number of ranks, or on another kind of machine.
        """
        if self.facts is None or explicit or system.intra_op_threads or self.facts.world_size != world:
            return system
        if saved_system(self.facts, self.path).device != system.device:
            return system
        return replace(system, intra_op_threads=self.threads())

    def threads(self) -> int:
        """The resumed run's compute threads; 0 where that is not known. Raises PacelineError for an impossible number."""
        threads = 0 if self.facts is None else self.facts.threads.get("intra_op", 0)
        if type(threads) is not int or not 0 <= threads <= MAX_THREADS:
            raise PacelineError(
                f"{self.path}: run.json: threads.intra_op must be 0..{MAX_THREADS}, got {str(threads)[:60]}."
            )
        return threads

    def weights(self) -> str:
        """The run's own --weights. Raises RecipeError for what is no text."""
        options = {} if self.facts is None else self.facts.options
        return convert_checked(str, options.get("weights", ""), f"{self.path}: run.json: weights")

    def report_threads(self, threads: int, reporter: Reporter) -> None:
        """Warn of a change of the number of compute threads, and of the cost of keeping it."""
        before, cores = self.threads(), count_cpus()
        count = f"{threads} thread{'s'[: threads > 1]}"
        if before and threads != before:
            reporter.warning(f"warning: computing with {count} instead of {before}. Sums now round differently.")
        elif before > cores:
            reporter.warning(
                f"warning: computing with {count} on {cores} core{'s'[: cores > 1]}, as before. The results stay identical, "
                f"but the run is slower. --system.intra-op-threads {cores} is faster and changes the results."
            )

    def submission(self, requested: Submission, reporter: Reporter) -> Submission:
        """The submission in MLPerf's log. A log belongs to one run, so a resumed run keeps its own, with a warning."""
        if self.facts is None:
            return requested
        where = f"{self.path}: run.json: options.mlperf"
        own = from_json(Submission(), convert_checked(dict, self.facts.options.get("mlperf", {}), where), where)
        plain = asdict(Submission())
        new = {name: value for name, value in asdict(requested).items() if value not in (plain[name], getattr(own, name))}
        if new:
            flags = ", ".join(f"--mlperf.{name.replace('_', '-')}" for name in new)
            kept = ", ".join(f"{name.replace('_', ' ')} {getattr(own, name) or 'not given'}" for name in new)
            reporter.warning(
                f"warning: {flags}: ignored, because the log of this run was started with {kept}. Start a new run to change it."
            )
        return own
