"""The command line's front door: picks the verb, turns errors into one message and an exit code.

Nothing heavy is imported here, so that --help and a mistyped verb answer at once.
Exit codes: 0 target reached, or no target and the whole length done, or stopped early as --steps or --time-budget asked;
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

from paceline.cli.voice import complain
from paceline.config.errors import UserError
from paceline.config.printable import printable
from paceline.log.output import guard_exit, lasting_output
from paceline.ranks.exit_code import leave_exit_code

# Every verb is the module paceline.cli.VERB with a function `run(arguments) -> exit code`; `from` is a word of Python's.
MODULES = {"from": "from_original"}
VERBS = {
    "train": "train a recipe to its target: paceline train resnet50-tiny",
    "launch": "train on many nodes: through Slurm, a list of hosts or here, with torchrun, srun or mpirun",
    "eval": "score a run's checkpoint on its validation images, or on others",
    "predict": "find classes, boxes or masks in photos with a trained run: pictures and JSON",
    "show": "print recipe, system, plan and memory estimate; needs no accelerator",
    "preview": "draw a mosaic of augmented training images",
    "download": "bring COCO 2017, Pascal VOC or ImageNet: checked, unpacked, prepared",
    "prepare": "verify a data set and write its manifest and index",
    "from": "our command for one of the four systems' own: paceline from 'ssd.py -e 64 -b 128'",
    "data": "what a prepared data set holds: paceline data info DIR",
    "pack": "write a data set as WebDataset's tars, RecordIO or TFRecord, photos as they are or smaller",
    "list": "workloads, recipes, systems or decoders, in a line each",
    "runs": "the runs in a folder: recipe, status, step, best result, time",
    "bench": "measure against a peer in the same run: paceline bench input",
    "report": "write a run's report.html again",
    "mlperf": "MLPerf's own checkers on a run's log, and a table of anybody's logs: paceline mlperf check RUN",
    "weights": "bring, check and convert weights: paceline weights get resnet50",
    "image": "build the container image of this checkout, or open a shell in it: paceline image build|shell",
    "doctor": "say what this machine has and what is missing",
}

# These leave something behind, so they go on when nobody reads what they print. The others are the text that they print.
WORKERS = ("train", "launch", "predict", "preview", "download", "prepare", "pack", "report", "weights", "image")

# Verbs of older versions -> what does their work now.
FORMER = {"convert": "paceline weights convert FILE --to ours|reference|... --out FILE"}

# What other tools call it -> what does it here.
ELSEWHERE = {
    "test": "paceline eval RUN",
    "val": "paceline eval RUN",
    "validate": "paceline eval RUN",
    "infer": "paceline predict RUN PHOTOS",
    "detect": "paceline predict RUN PHOTOS",
    "resume": "paceline train RUN/run.json --out RUN",
    "track": "paceline predict RUN PHOTOS, photo by photo: objects are not followed from one to the next",
    "export": "paceline weights convert RUN/checkpoints/best --to FORM --out FILE; ONNX and TorchScript are not written yet",
}

USER_ERROR, FAILED, INTERRUPTED = 2, 3, 75


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code."""
    ours = arguments is None and threading.current_thread() is threading.main_thread()  # else somebody's who calls us
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interrupts())
    settle_environment()
    guard_exit()
    words = list(sys.argv[1:] if arguments is None else arguments)
    with lasting_output() as output:
        if not words or words[0] not in WORKERS:
            output.quiet_pipe = True  # `paceline show ... | head` is no accident
            output.goes_on = "what this command prints is lost"
        code = _outcome(words)
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over: its code stands
        output.flush()  # here, where the loss of a short text is noticed
        told = output.lost is None or isinstance(output.lost, BrokenPipeError) or not output.quiet_pipe
        code = code if told else code or FAILED
    leave_exit_code(code)
    if ours and code in (FAILED, INTERRUPTED):
        # Threads may be anywhere, and Python aborts where it meets one that holds stderr while it ends.
        os._exit(code)
    return code


class _Interrupts:
    """What Ctrl-C does: the first one ends the command in good order, one while it does leaves at once."""

    def __init__(self) -> None:
        self._ending = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._ending:
            os._exit(INTERRUPTED)
        self._ending = True
        raise KeyboardInterrupt


def _outcome(words: Sequence[str]) -> int:
    """Carry out one command; -> its exit code, whatever happened."""
    try:
        return _carry_out(words)
    except UserError as problem:
        complain(f"paceline: {problem}", problem)
        return USER_ERROR
    except KeyboardInterrupt:
        complain("paceline: interrupted")
        return INTERRUPTED
    except SystemExit as ending:  # the flag parser has already printed its message
        return ending.code if isinstance(ending.code, int) else USER_ERROR
    except Exception as error:
        from paceline.machine.shortage import shortage

        if (short := shortage(error)) is not None:
            complain(f"paceline: {short}", short)
        else:
            print(printable(traceback.format_exc()), end="", file=sys.stderr)
        return FAILED


def settle_environment() -> None:
    """What torch's libraries read once, when they are loaded; a value that is set already stays."""
    # Compute threads wait for each other a few hundred times a step. OpenMP's default is to wait spinning, which burns the
    # core that the late thread needs as soon as anything else runs: one busy neighbour on two cores cost 9/10 of the speed.
    # A short spin costs 3 percent on an idle machine (results/openmp-waiting).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # When a rank dies, torch's C++ prints backtraces of the echoes on the others; our own line names the cause.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # torch's profiler library (--profile) logs its start and stop, and an error for want of a GPU; 99 is above all of them.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _carry_out(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else USER_ERROR
    if words[0] in ("--version", "version"):
        from paceline.version import __version__

        print(f"paceline {__version__}")
        return 0
    return verb(words[0]).run(words[1:])


def verb(name: str) -> ModuleType:
    """The module of a verb.

    Raises UserError for an unknown one, naming its nearest neighbour.
    """
    if name in FORMER:
        raise UserError(f"there is no verb {name!r} any more. Use:  {FORMER[name]}")
    if name in ELSEWHERE:
        raise UserError(f"there is no verb {name!r}. Use:  {ELSEWHERE[name]}")
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"Did you mean `paceline {near[0]}`?" if near else "Run `paceline --help` for the list."
        raise UserError(f"there is no verb {name!r}. {hint}")
    return importlib.import_module(f"paceline.cli.{MODULES.get(name, name)}")


def overview() -> str:
    """The text of `paceline --help`."""
    rows = "\n".join(f"  {name:<9} {line}" for name, line in VERBS.items())
    return (
        "usage: paceline VERB ...\n\n"
        "Trains ResNet-50, SSD-ResNet34 and Mask R-CNN to their MLPerf quality targets, on a CPU or on many GPUs.\n\n"
        f"{rows}\n\n"
        "Every verb answers --help. Start here:  paceline train ssd-tiny"
    )
