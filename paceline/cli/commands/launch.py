"""`paceline launch RECIPE --system NAME --nodes N [--scheduler ...] [--launcher ...] [--container-runtime ...] [train flags]`."""

from __future__ import annotations

import glob
import importlib.util
import math
import shlex
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from paceline._utils.commands import format_command, format_path
from paceline._utils.errors import PacelineError
from paceline._utils.formatting import format_duration
from paceline._utils.names import next_numbered_folder
from paceline.cli.flags import ParsedArgs, explain, parse_run_args
from paceline.cli.help import HELP
from paceline.cli.launch_checks import check_devices, check_plan, check_port, choose_walltime
from paceline.cli.printing import Printer
from paceline.cli.saved_request import saved_request
from paceline.config.constraints import Help
from paceline.config.published import check_submission, published_for
from paceline.config.run import RunOptions, check_run_options, get_initial_weights
from paceline.distributed.comm.environment import check_interface
from paceline.distributed.comm.exit_code import EXIT_CODES, INTERRUPTED
from paceline.distributed.comm.interfaces import list_interfaces
from paceline.distributed.comm.launcher import SINGLE
from paceline.launch.config import LaunchConfig, check_launch_config, check_walltime, make_job, warn_outside_variables
from paceline.launch.job import BatchOptions
from paceline.launch.runner import launch_job
from paceline.models.registry import get_workload
from paceline.models.weights.download import cached_weights, is_published
from paceline.tools.estimate.summary import check_rates
from paceline.tools.mlperf.logs import MIN_FOR_MEAN, olympic_mean
from paceline.training.logging.events import read_events
from paceline.training.previous_run import FinishedError
from paceline.training.request import check_not_finished, check_request, check_weights_named
from paceline.training.run_arguments import is_folder

ABOUT = """Start training on one or more nodes. The command writes the launch files (sbatch script, mpirun or container command) in the
run folder, prints them, and runs them. It follows the log and returns the exit code of the run. You can choose the source of nodes
(--scheduler), the program that starts the ranks (--launcher), and the container (--container-runtime) independently. All flags of
`paceline train` are supported. --dry-run only writes and prints the files. See docs/how-to/cluster/launch.md for examples."""
MAX_TRIALS = 1000


@dataclass(frozen=True)
class LaunchFlags(RunOptions, LaunchConfig):
    """What `launch_job` takes beside the recipe's and the system's fields: those of `train`, and these."""

    num_trials: Annotated[int, Help("number of runs with different seeds, one after another (OUT/trial-N); 0: one run")] = 0
    preflight: Annotated[bool, Help("check every node in the job before training (docs/how-to/cluster/launch.md)")] = False
    dry_run: Annotated[bool, Help("write and print the files, start nothing")] = False
    images_per_second: Annotated[float, Help("images per second per rank (--walltime auto); 0: measured or published")] = (
        0.0
    )
    network_gbit: Annotated[float, Help("network speed per node (Gbit/s; --walltime auto); 0: of the system")] = 0.0


# Flags of LaunchFlags itself, which `train` does not take; --output-dir is given to it for each run.
OWN = ("num_trials", "preflight", "dry_run", "images_per_second", "network_gbit", "output_dir")


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Launch, and return the run's exit code; of several trials the worst."""
    if not arguments or arguments[0] in HELP:
        explain("launch RECIPE|RUN/run.json", ABOUT, LaunchFlags(), arguments)
    args, repeats = _parsed(printer, arguments)
    flags: LaunchFlags = replace(args.options, slurm=_slurm_batch(args))
    check_run_options(flags)
    check_submission(flags.mlperf, args.recipe)
    check_launch_config(flags)
    if not 0 <= flags.num_trials <= MAX_TRIALS:
        raise PacelineError(f"--num-trials {flags.num_trials}: must be from 0 (one run) to {MAX_TRIALS:,}.")
    folders = _trial_folders(Path(flags.output_dir), flags.num_trials) if flags.output_dir else []
    request = replace(args.request(format_command("launch", *arguments), repeats=repeats), options=flags)
    check_weights_named(request, *(folders or [flags.output_dir]))
    if flags.num_trials and flags.sync_to:
        raise PacelineError(
            "--sync-to: not supported with --num-trials, because the folder holds one run. Remove one of them."
        )
    check_rates(flags.images_per_second, flags.network_gbit)
    planned = check_plan(printer, args, flags, repeats=repeats)
    if flags.walltime != "auto" and (flags.images_per_second or flags.network_gbit):
        raise PacelineError("--images-per-second and --network-gbit require --walltime auto.")
    check_devices(args.system_name, planned.system, flags)
    check_port(flags)
    if flags.scheduler == "local" and "system.interface" in args.given:
        check_interface(planned.system.interface, list_interfaces())
    minutes = choose_walltime(printer, args, planned, flags)
    if flags.scheduler == "slurm":
        check_walltime(minutes, flags.slurm)
    words = remove_flags(arguments, flags, LaunchConfig, (*OWN, "seed") if flags.num_trials else OWN)
    base = Path(flags.output_dir).expanduser().absolute() if flags.output_dir else next_numbered_folder(args.name)

    more = "" if flags.output_dir else f" with {shlex.join(['--output-dir', str(format_path(base))])}"
    again = f"the same command{more}"
    if not flags.output_dir:
        printer.say(f"run: {format_path(base)}; {again} follows and resumes it; without --output-dir, a new run starts")
    if outside := warn_outside_variables(flags, planned.system):
        printer.say(outside)
    here = flags.data
    if flags.data and flags.scheduler != "local" and not Path(flags.data).expanduser().exists():
        printer.say(f"--data {flags.data}: not found on this machine; it must exist on the nodes")
        here = ""
    named = _weights_file(printer, flags)

    def start(folder: Path, more: tuple[str, ...] = ()) -> int:
        check_not_finished(replace(request, options=replace(flags, output_dir=str(folder))), SINGLE)
        check_request(args.recipe, here)
        job = make_job(
            ("train", *words, "--output-dir", str(folder), *more),
            folder,
            name=args.name,
            where=flags,
            system_name=args.system_name,
            system=planned.system,
            minutes=minutes,
            reads=(flags.data, named),
            writes=(flags.copy_data_to,),
            again=again,
        )
        if flags.preflight:
            # A name of published weights, or a bucket, is no file that a node could lack.
            local = [flags.data] if flags.data and "://" not in flags.data else []
            local += [named] if named and Path(named).expanduser().exists() else []
            reads = tuple(str(Path(path).expanduser().absolute()) for path in local)
            writes = (str(Path(flags.copy_data_to).expanduser().absolute()),) if flags.copy_data_to else ()
            job = replace(job, preflight=True, preflight_reads=reads, preflight_writes=writes)
        return launch_job(job, dry=flags.dry_run, say=print)

    if not flags.num_trials:
        code = start(base)
        if code == INTERRUPTED and not flags.output_dir:  # the ranks were given an --output-dir, and speak of it
            printer.say(f"{again} resumes the run")
        return code
    return _trials(printer, args, flags, base, start, again)


def _weights_file(printer: Printer, flags: LaunchFlags) -> str:
    """The file that --weights names, which nodes must find; "" for none and for published ones, which come from the cache.

    Raises PacelineError for a file that this machine lacks where the job runs here.
    """
    named = get_initial_weights(flags)
    weights = Path(named).expanduser()
    if is_published(named):
        if not cached_weights(named).is_file():
            printer.say(f"--weights {named}: not in the cache of this machine; each node uses its cache or downloads them")
        return ""
    if named and not any(weights.parent.glob(f"{glob.escape(weights.name)}*")):  # TensorFlow's are called by a prefix
        if flags.scheduler == "local":
            raise PacelineError(f"--weights {named}: not found. Check the path.")
        printer.say(f"--weights {named}: not found on this machine; it must exist on the nodes")
    return named


def _slurm_batch(args: ParsedArgs) -> BatchOptions:
    """--slurm, with the network that was published for exactly this."""
    batch, published = args.options.slurm, published_for(args.name, args.system_name, args.options.nodes)
    if published is None or not published.slurm_network or "slurm.network" in args.given:
        return batch
    return replace(batch, network=published.slurm_network)


def _trial_folders(base: Path, count: int) -> list[Path]:
    return [base / f"trial-{number}" for number in range(count)]


def _trials(printer: Printer, args: ParsedArgs, flags: LaunchFlags, base: Path, start: Any, again: str) -> int:
    """One run a seed; those that are finished already are counted as they are."""
    done: list[LaunchTrial] = []
    codes: list[int] = []
    for number, folder in enumerate(_trial_folders(base, flags.num_trials)):
        seed = args.recipe.seed + number
        try:
            codes.append(start(folder, ("--seed", str(seed))))
        except FinishedError:
            codes.append(EXIT_CODES[read_trial(number, seed, folder).status])
            printer.say(f"trial {number} is already finished")
        if flags.dry_run:
            continue
        if codes[-1] == INTERRUPTED:
            printer.say(f"interrupted in trial {number}; {again} resumes it")
            return INTERRUPTED
        done.append(replace(read_trial(number, seed, folder), checked=_checked(printer, args, folder)))
        printer.say(done[-1].line(args.name))
    if done:
        printer.say(format_trials(done))
    return max(codes)


def _checked(printer: Printer, args: ParsedArgs, folder: Path) -> bool | None:
    """MLPerf's compliance checker on a trial's log; its objections are printed. None where the benchmark, the log or it is missing."""
    from paceline.tools.mlperf import compliance

    ruleset, log = get_workload(args.recipe.task).reporting.rules(args.recipe)[1], folder / "mllog.txt"
    if not ruleset or not log.is_file() or importlib.util.find_spec("mlperf_logging") is None:
        return None
    verdict = compliance.check_compliance(log, ruleset)
    for line in verdict.failed:
        printer.say(f"{log}: {line}")
    return verdict.passed


def _parsed(printer: Printer, arguments: Sequence[str]) -> tuple[ParsedArgs, bool]:
    """The request, as `train` parses it; and whether it repeats a run.json."""
    if not arguments[0].endswith(".json"):
        if is_folder(arguments[0]):
            raise PacelineError(f"{arguments[0]}: is a folder. To repeat a run, use {arguments[0]}/run.json")
        return parse_run_args(arguments, LaunchFlags(), verb="launch", printer=printer), False
    base, options, _, words = saved_request(Path(arguments[0]), arguments[1:], "launch")
    flags = LaunchFlags(**{field.name: getattr(options, field.name) for field in fields(RunOptions)})
    return parse_run_args(words, flags, verb="launch", base=base, printer=printer), True


# The words of a launch that are for `train`: all but the flags of the launch itself.


def remove_flags(arguments: Sequence[str], flags: Any, kind: type, more: Collection[str]) -> tuple[str, ...]:
    """The words without the fields of dataclass `kind` and those called `more`, and without their values.

    flags   the parsed flags: which fields are nested, and which take no value, is seen by theirs
    A value never starts with two dashes unless it is joined to its flag by =, so it ends at the next flag.
    """
    names = {field.name for field in fields(kind)} | set(more)
    kept: list[str] = []
    inside = False
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            top, _, _ = name.partition(".")
            inside = (top in names and is_dataclass(getattr(flags, top, None)) == ("." in name)) or (
                name.startswith("no_") and name[3:] in names
            )
            if not inside:
                kept.append(word)
        elif not inside:
            kept.append(word)
    return tuple(kept)


@dataclass(frozen=True)
class LaunchTrial:
    """One run's end."""

    number: int  # of the trial, from 0
    seed: int  # the recipe's
    seconds: float  # from the run's start to its end; infinite where it reached no target
    status: str  # of its `end` event; "not finished" if it has none
    checked: bool | None = None  # whether MLPerf's compliance checker passed its log; None: unchecked

    def line(self, name: str) -> str:
        """RESULT,recipe,trial,seed,seconds,status,checker: for scripts."""
        verdict = {True: "passed", False: "failed", None: "unchecked"}[self.checked]
        return f"RESULT,{name},{self.number},{self.seed},{self.seconds:.3f},{self.status},{verdict}"


def read_trial(number: int, seed: int, folder: Path) -> LaunchTrial:
    """How the run in `folder` ended."""
    file = folder / "events.jsonl"
    events = read_events(file) if file.exists() else []
    if not events or events[-1]["event"] != "end":
        return LaunchTrial(number, seed, math.inf, "not finished")
    end = events[-1]
    return LaunchTrial(number, seed, end["seconds"] if end["status"] == "success" else math.inf, str(end["status"]))


def format_trials(trials: Sequence[LaunchTrial]) -> str:
    """One line of all trials: how many reached the target, the median, and MLPerf's mean.

    MLPerf's score of five runs drops the fastest and the slowest and takes the mean of the others; a run that missed its target
    counts as the slowest (MLPerf training rules, section 12, "Benchmark Results").
    """
    seconds = [trial.seconds for trial in trials]
    reached = sum(math.isfinite(one) for one in seconds)
    parts = [f"{reached} of {len(trials)} trials reached the target", f"median {_time(statistics.median(seconds))}"]
    if len(trials) >= MIN_FOR_MEAN:
        parts.append(f"mean without the fastest and slowest {_time(olympic_mean(seconds))}")
    if judged := [trial.checked for trial in trials if trial.checked is not None]:
        parts.append(f"MLPerf's checker passed {sum(judged)} of {len(judged)} log{'s'[: len(judged) != 1]}")
    return ", ".join(parts)


def _time(seconds: float) -> str:
    return format_duration(seconds) if math.isfinite(seconds) else "none (too many trials missed the target)"
