"""The command line's front door: picks the verb, turns errors into one message and an exit code.

Nothing heavy is imported here, so that --help and a mistyped verb answer at once.
Exit codes: 0 target reached, or no target and the whole length done, or stopped early as --max-steps or --max-time asked;
1 ended without reaching the target; 2 user error; 3 failed; 75 interrupted and resumable.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType, ModuleType

from paceline._utils.errors import PacelineError
from paceline._utils.text import escape_text
from paceline.cli.printing import Printer, print_error
from paceline.distributed.comm.exit_code import FAILED, INTERRUPTED, USER_ERROR, leave_exit_code, set_library_variables
from paceline.training.logging.stdout_guard import guard_exit, keep_output_open

# Command -> what it does. Its module in commands/ has a function `run(printer, arguments) -> exit code`.
VERBS = {
    "train": "train a recipe: paceline train classify-demo",
    "launch": "train on many nodes, with Slurm, a list of hosts, or this machine, and torchrun, srun, or mpirun",
    "eval": "evaluate a checkpoint on the validation images of its run, or on other images",
    "predict": "predict classes, boxes, or masks in images; write images and JSON",
    "export": "write a trained model to one file: paceline export RUN --output cats.safetensors",
    "serve": "serve predictions with a web page and a JSON API: paceline serve RUN",
    "plan": "print recipe, system, plan, and memory estimate; needs no accelerator",
    "preview": "draw a mosaic of augmented training images",
    "download": "download, verify, unpack, and prepare COCO 2017, Pascal VOC, or ImageNet",
    "prepare": "verify a dataset and write its manifest and index",
    "translate": "translate a command of a reference system: paceline translate 'ssd.py -e 64 -b 128'",
    "data": "describe, check, or pack a dataset: paceline data info|lint|pack DIR",
    "list": "list tasks, recipes, published configurations, systems, or decoders",
    "runs": "list the runs in a folder: recipe, status, step, best result, time",
    "compare": "compare settings and results of runs, and test whether differences are significant",
    "bench": "measure speed compared with other libraries: paceline bench input",
    "report": "write the report.html of a run again",
    "mlperf": "run MLPerf's checkers on logs, or tabulate logs: paceline mlperf check RUN",
    "weights": "download, inspect, and convert weights: paceline weights download resnet50",
    "container": "build the container image of this checkout, or open a shell in it: paceline container build|shell",
    "completion": "print shell completion for bash, zsh, or fish: paceline completion bash",
    "doctor": "report what this machine has for training, and what is missing",
    "check-performance": "measure whether this machine is as fast as expected",
}

# These write files, so they go on when nobody reads what they print. The others only print.
WORKERS = (
    "train",
    "launch",
    "predict",
    "export",
    "serve",
    "preview",
    "download",
    "prepare",
    "data pack",
    "report",
    "weights",
    "container",
    "check-performance",
)

# Command of other tools -> ours, which is carried out.
SYNONYMS = {"val": "eval", "validate": "eval", "test": "eval", "infer": "predict", "detect": "predict"}
# Command of other tools -> the line that does it here.
ELSEWHERE = {
    "convert": "paceline weights convert FILE --format paceline|reference|... --output FILE",
    "analyze": "paceline mlperf analyze LOGS",
    "benchmark": "paceline bench step RECIPE",
    "pack": "paceline data pack DIR --format webdataset --output-dir DIR",
    "resume": "paceline train RUN/run.json --output-dir RUN",
    "track": "paceline predict RUN IMAGES (each frame separately; objects are not tracked)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code."""
    ours = arguments is None and threading.current_thread() is threading.main_thread()  # else somebody's who calls us
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interrupts())
    set_library_variables()
    guard_exit()
    words = list(sys.argv[1:] if arguments is None else arguments)
    words[:1] = [SYNONYMS.get(word, word) for word in words[:1]]
    with keep_output_open() as output:
        if not {" ".join(words[:1]), " ".join(words[:2])}.intersection(WORKERS):
            output.quiet_pipe = True  # `paceline plan ... | head` is no accident
            output.goes_on = "the output of this command is lost"
        printer = Printer()
        code = _outcome(words, printer)
        printer.answer(words[0] if words else "", code)
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over: its code stands
        output.flush()  # here, where the loss of a short text is noticed
        complete = output.lost is None or isinstance(output.lost, BrokenPipeError) or not output.quiet_pipe
        code = code if complete else code or FAILED
    leave_exit_code(code)
    if ours and code in (FAILED, INTERRUPTED):
        # Threads may be anywhere, and Python aborts where it meets one that holds stderr while it ends.
        os._exit(code)
    return code


class _Interrupts:
    """The first Ctrl-C ends the command in order; a second one while it ends leaves at once."""

    def __init__(self) -> None:
        self._ending = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._ending:
            os._exit(INTERRUPTED)
        self._ending = True
        raise KeyboardInterrupt


def _outcome(words: Sequence[str], printer: Printer) -> int:
    """Run one command; return its exit code, whatever happened."""
    try:
        return _carry_out(words, printer)
    except PacelineError as problem:
        print_error(f"paceline: {problem}", problem)
        return USER_ERROR
    except KeyboardInterrupt:
        print_error("paceline: interrupted")
        return INTERRUPTED
    except SystemExit as ending:  # the flag parser has already printed its message
        return ending.code if isinstance(ending.code, int) else USER_ERROR
    except Exception as error:
        from paceline.distributed.device.host_memory import explain_shortage

        if (short := explain_shortage(error)) is not None:
            print_error(f"paceline: {short}", short)
        else:
            print(escape_text(traceback.format_exc()), end="", file=sys.stderr)
        return FAILED


def _carry_out(words: Sequence[str], printer: Printer) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(format_overview())
        return 0 if words else USER_ERROR
    if words[0] in ("--version", "version"):
        from paceline._utils.version import __version__

        print(f"paceline {__version__}")
        return 0
    return find_command(words[0]).run(printer, words[1:])


def find_command(name: str) -> ModuleType:
    """The module of a verb.

    Raises PacelineError for an unknown one, naming its nearest neighbor.
    """
    if name in ELSEWHERE:
        raise PacelineError(f"{name!r} is not a paceline command. Use:  {ELSEWHERE[name]}")
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"Did you mean `paceline {near[0]}`?" if near else "Run `paceline --help` for the list."
        raise PacelineError(f"{name!r} is not a paceline command. {hint}")
    return importlib.import_module(f"paceline.cli.commands.{name.replace('-', '_')}")


def format_overview() -> str:
    """The text of `paceline --help`."""
    rows = "\n".join(f"  {name:<17} {about}" for name, about in VERBS.items())
    return (
        "usage: paceline COMMAND ...\n\nTrain ResNet-50, SSD-ResNet34, and Mask R-CNN on CPUs and GPUs.\n"
        "No recipe has been trained to its target on a GPU yet.\n\n"
        f"{rows}\n\n"
        "Every command has --help. Start here:  paceline train ssd-demo"
    )
