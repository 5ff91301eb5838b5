"""What a system's JSON file holds, and how it is read: flags, variables, scripts, configurations and pages of an original."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from paceline.config.constraints import read_single
from paceline.config.recipe import Recipe

# A cell that begins with one of these has no command of ours; what follows the colon is the reason.
WORDS = ("fixed", "automatic", "dead", "none")
# What a value must be, as refusals call it; bool: a switch, ints: several whole numbers. calls.py parses each.
Kind = Literal[
    "int", "float", "str", "bool", "ints", "number", "list of numbers", "pow2 or list of epochs", "channels and two equal sides"
]  # fmt: skip
# A variable that the usual script makes a flag: --lr ${LR:-0.6}.
PASSED_ON = re.compile(r"(--[\w-]+) \$\{(\w+):-")


@dataclass(frozen=True)
class FlagTranslation:
    """A flag or a variable of an original."""

    names: tuple[str, ...]  # all its spellings, the one that tables use first
    ours: str  # cell of the page: flags of ours with {} for the value, or `dead: why`
    kind: Kind = "str"  # what its value must be
    default: Any = None  # without it on the line
    remark: str = ""  # third cell of the page
    example: str = ""  # the value in the page's cell; empty = the default
    fields: tuple[str, ...] = ()  # dotted fields of our recipe that it decides: `recipe` of its program reads it
    values: Mapping[str, str] | None = None  # value -> flags of ours, in the place of a template
    row: str = ""  # row of docs/reference/known-differences.md that tells what differs where it is given
    by: str = ""  # data, weights, system, launch, ranks, container: its program's formulas carry it over, not a template
    slurm: bool = False  # means something in a Slurm job alone

    @property
    def status(self) -> str:
        """One of WORDS, or "carries"."""
        word = self.ours.partition(":")[0].split(" ")[0]
        return word if word in WORDS else "carries"

    @property
    def reason(self) -> str:
        """Why nothing carries over."""
        return self.ours.partition(":")[2].strip() or self.ours

    def flags(self, value: Any) -> str:
        """Our flags for a value of theirs; empty: none is needed."""
        if self.status != "carries" or self.fields or self.by or self.ours.startswith("paceline "):
            return ""
        return self.cell(value) if self.values is None else self.values.get(str(value), "")

    def cell(self, value: Any) -> str:
        """The cell of the page for a value of theirs."""
        text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return (self.values or {}).get(text) or self.ours.replace("{}", text)


@dataclass(frozen=True, kw_only=True)
class TrainingSize:
    """What a training comes to, in numbers; the same of theirs and of ours."""

    global_batch_size: int  # images of an optimizer step
    batch_per_device: int  # of these, one accelerator's
    devices: int  # accelerators that train
    steps_per_epoch: float
    epochs: float  # the most; a target ends it earlier
    steps: int  # epochs in steps
    lr: float  # peak
    warmup_steps: float
    decay: str = "multistep"  # or cosine, polynomial, constant
    decay_steps: tuple[float, ...]  # where the rate falls; where its fall ends
    weight_decay: float
    weights: str = "none"  # name of the pretrained weights
    target: str = "none"  # e.g. box_ap 0.23

    @classmethod
    def in_epochs(
        cls, batch: int, devices: int, steps: int, epochs: float, falls: Sequence[float], **own: Any
    ) -> TrainingSize:
        """Of a program that counts in epochs.

        batch  of one device
        steps  of an epoch
        falls  epochs after which the rate falls, or its fall ends
        own    the other fields, and the global batch where it is another than that of all devices
        """
        own = {"global_batch_size": batch * devices, **own, "steps": round(epochs * steps)}
        ends = tuple(epoch * steps for epoch in falls)
        return cls(batch_per_device=batch, devices=devices, steps_per_epoch=steps, epochs=epochs, decay_steps=ends, **own)


@dataclass(frozen=True)
class TrainingCall:
    """One training of an original, as its command line asks for it."""

    program: ReferenceProgram
    given: Mapping[str, Any]  # first name of a flag -> its value, where the line has it
    line: Mapping[str, Any]  # the same, before variables changed any
    variables: Mapping[str, str]  # of the line, its configuration and its script
    nodes: int = 1
    per_node: int = 1  # accelerators of a node
    sourced: tuple[str, ...] = ()  # file names of the configurations that were read
    before: tuple[str, ...] = ()  # words before the program: the launcher's
    machine: str = ""  # a system of ours; empty = none is named
    through: str = ""  # --scheduler of ours: slurm, hostfile; empty = here
    start: str = ""  # --launcher of ours: mpirun, srun, torchrun; empty = none
    container: str = ""  # --container-runtime of ours
    hostfile: str = ""
    mounts: Mapping[str, str] = field(default_factory=dict)  # folder in the container -> folder outside
    more: tuple[str, ...] = ()  # further flags of launch that the line asks for

    @property
    def devices(self) -> int:
        """Accelerators of the whole job."""
        return self.nodes * self.per_node

    def __getitem__(self, name: str) -> Any:
        """A flag's value, or its default."""
        return self.given[name] if name in self.given else self.program.entry(name).default


@dataclass(frozen=True)
class Formulas:
    """What a program computes from its flags, and so no table can say."""

    facts: Callable[[TrainingCall], TrainingSize]  # by its own formulas
    recipe: Callable[[TrainingCall], Recipe]  # the same as a recipe of ours
    system: Callable[[TrainingCall], dict[str, Any]] = lambda call: {}  # fields of our System that it asks for
    data: Callable[[TrainingCall], str] = lambda call: ""  # path of the data set; empty = none is named
    weights: Callable[[TrainingCall], str] = lambda call: ""  # for --weights; empty = none
    # Words of another command of ours, if a flag asks for other work than training; its first word names a program whose
    # flags count for it.
    instead: Callable[[TrainingCall], Sequence[str]] = lambda call: ()
    settle: Callable[[TrainingCall], TrainingCall] = lambda call: (
        call
    )  # what flags of its own decide of nodes, machine and launcher
    also: Callable[[TrainingCall], tuple[tuple[str, str], ...]] = lambda call: ()  # what differs in this line, as `differs`


@dataclass(frozen=True)
class ReferenceProgram:
    """A program that trains, and all its flags. Sequences of entries or lines are, in the file, names of its tables."""

    code: str  # name of its formulas
    of: str  # the Original's name
    files: tuple[str, ...]  # what the file that is run is called
    flags: Sequence[FlagTranslation]
    candidates: tuple[str, ...]  # recipes and rows that may be named, the likeliest first; resnet50@ = all rows so named
    differs: tuple[
        tuple[str, str], ...
    ] = ()  # (what differs in every training, row of docs/reference/known-differences.md)
    # Fact -> row that says why ours may have another number.
    explains: Mapping[str, str] = field(default_factory=dict)
    source: str = ""  # file of the original that defines the flags
    formulas: Formulas = None  # type: ignore[assignment]  # set when the file is read

    def entry(self, name: str) -> FlagTranslation:
        """The flag of that name. Raises KeyError for one that the program does not have."""
        for entry in self.flags:
            if name in entry.names:
                return entry
        raise KeyError(name)


@dataclass(frozen=True)
class ReferenceScript:
    """A script of an original, as far as it decides what runs: read from here where the file itself does not lie beside."""

    files: tuple[str, ...]
    text: str = ""  # shell text that calls the program; empty = the Original's usual one
    defaults: str = ""  # shell text: variables that it sets where nobody did
    through: str = ""
    start: str = ""
    container: str = ""


@dataclass(frozen=True)
class CommandPair:
    """A line of a page: an original's command beside ours."""

    theirs: str  # cell, as Markdown
    ours: str = ""  # cell, as Markdown; empty = what `run` is translated to
    remark: str = ""
    run: str = ""  # the original's command line, as it is typed
    of: str = ""  # its --source-system, where two systems have a configuration of that name
    files: tuple[str, ...] = ()  # programs and scripts of the original that it stands for


@dataclass(frozen=True)
class MigrationTable:
    """A table of a page."""

    title: str
    rows: Sequence[FlagTranslation | CommandPair]  # the table `call`: variables that become flags
    follows: str = ""  # the command of ours that flags in the second column follow
    text: str = ""  # above the table


@dataclass(frozen=True)
class MigrationPage:
    """A page of docs/reference/generated/migration."""

    name: str  # of the file
    title: str
    text: str  # below the title
    sections: tuple[MigrationTable, ...]


@dataclass(frozen=True)
class ReferenceSystem:
    """One of the systems."""

    name: str  # for --source-system; several programs of one system may stand apart
    programs: tuple[ReferenceProgram, ...]
    scripts: tuple[ReferenceScript, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)  # file -> its assignments, as shell text
    variables: Sequence[FlagTranslation] = ()
    launcher: Sequence[FlagTranslation] = ()  # words before the program that mean something, as mpirun's and bind.sh's
    tools: Sequence[CommandPair] = ()  # its programs and scripts that do not train
    call: str = ""  # shell text: how its usual script calls the program
    config: str = ""  # shell text: the name of the configuration that its scripts read
    # Prefix of a configuration's or system's name -> system of ours.
    machines: Mapping[str, str] = field(default_factory=dict)
    started_on: Mapping[str, int] = field(default_factory=dict)  # likewise -> nodes, where the file says another number
    marks: tuple[str, ...] = ()  # variables that a configuration of it sets, and that of no other system
    nodes: tuple[str, ...] = ()  # variables that hold the number of nodes
    per_node: tuple[str, ...] = ()  # of accelerators a node


@dataclass(frozen=True)
class SystemTables:
    """A whole file."""

    entries: Mapping[str, tuple[FlagTranslation, ...]]  # tables of flags and variables, by name
    lines: Mapping[str, tuple[CommandPair, ...]]  # tables of commands, by name
    originals: tuple[ReferenceSystem, ...]
    pages: tuple[MigrationPage, ...]


def read_system(module: str, formulas: Mapping[str, Formulas]) -> SystemTables:
    """The JSON file beside a module, with the module's formulas. Raises RecipeError for a damaged file."""
    result = read_single(Path(module).with_suffix(".json"), SystemTables)
    tables: dict[str, Sequence[Any]] = {**result.entries, **result.lines}

    def filled(part: Any, *names: str, **more: Any) -> Any:
        """`part` with its names of tables replaced by their rows."""
        rows = {name: tuple(chain.from_iterable(tables[table] for table in getattr(part, name))) for name in names}
        return replace(part, **rows, **more)

    originals = []
    for original in result.originals:
        programs = tuple(filled(one, "flags", formulas=formulas.get(one.code)) for one in original.programs)
        originals.append(filled(original, "variables", "launcher", "tools", programs=programs))
        passed_on = PASSED_ON.findall(original.call)
        tables["call"] = tuple(replace(programs[0].entry(flag), names=(name,)) for flag, name in passed_on)
    pages = (replace(page, sections=tuple(filled(one, "rows") for one in page.sections)) for page in result.pages)
    return replace(result, originals=tuple(originals), pages=tuple(pages))
