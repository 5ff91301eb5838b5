"""`paceline weights get NAME | check FILE | convert FILE --to FORM --out FILE`: weights of others, and ours for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.command.flags import parse
from paceline.command.printing import say
from paceline.config.commands import command
from paceline.config.errors import UserError

KINDS = """usage: paceline weights KIND ...

  get NAME       bring published weights, checked against the checksum in their name; without a name: which there are
  check FILE     what a file of weights is, whether it is whole, and which of our networks it fits, row by row
  convert FILE   --to FORM --out FILE: into another form; without --to: which there are

Each answers --help. Training takes any of these files but pickled arrays, which convert reads, as it is, and brings published
weights itself: paceline train RECIPE --weights FILE_OR_NAME."""


@dataclass(frozen=True)
class GetFlags:
    """What to bring."""

    name: Annotated[str, tyro.conf.Positional] = ""  # which weights; empty = list them
    out: Path = Path()  # folder to keep the file in, under its own name; empty = here
    from_: Annotated[str, tyro.conf.arg(name="from")] = ""  # a copy: its folder, its address, or the file


def run(arguments: Sequence[str]) -> int:
    """Carry out one of them."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(KINDS)
        return 0 if arguments else 2
    kind, rest = arguments[0], arguments[1:]
    if kind == "get":
        return _get(rest)
    if kind == "check":
        from paceline.cli.weights_check import run_check

        return run_check(rest)
    if kind == "convert":
        from paceline.cli.weights_convert import run_convert

        return run_convert(rest)
    raise UserError(f"weights {kind!r}: there is no such thing. Known: get, check, convert.")


def _get(arguments: Sequence[str]) -> int:
    flags = parse(arguments, GetFlags(), prog="weights get", description="Bring published weights.")
    from paceline.command.progress import live_progress
    from paceline.weights.forms.bring import bring
    from paceline.weights.forms.published import PUBLISHED

    if not flags.name:
        width = max(map(len, PUBLISHED))
        for name, published in PUBLISHED.items():
            say(f"{name:<{width}}  {published.about}")
        return 0
    if flags.name not in PUBLISHED:
        raise UserError(f"weights get {flags.name!r}: there are no such weights. Known: {', '.join(PUBLISHED)}.")
    published = PUBLISHED[flags.name]
    with live_progress() as progress:
        kept = bring(flags.name, flags.out, source=flags.from_, say=say, progress=progress)
    for file in published.files:
        known = file.sha256_prefix or file.md5 or file.sha1
        say(f"{flags.out / file.name}: {'its checksum is right' if known else 'nobody published its checksum'}")
    say(f"next:  {command('weights', 'check', kept)}")
    if kept.suffix == ".pkl":
        from paceline.weights.forms.files import conversion

        say(f"then:  {conversion(kept)}")
        kept = kept.with_suffix(".safetensors")
    say(f"or:    {command('train', *published.train.split(), '--data', 'DIR', '--weights', kept)}")
    return 0
