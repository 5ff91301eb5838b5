"""`paceline completion bash|zsh|fish`: a script that completes verbs, kinds, recipes and flags, written from every verb's help."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial

from paceline.cli.flags import run_kind
from paceline.cli.help import HELP
from paceline.cli.printing import Printer

USAGE = """usage: paceline completion SHELL

  bash   eval "$(paceline completion bash)" in ~/.bashrc, or write a file for bash-completion:
         paceline completion bash > ~/.local/share/bash-completion/completions/paceline
  zsh    paceline completion zsh > ~/.paceline.zsh, and in ~/.zshrc, after compinit: source ~/.paceline.zsh
  fish   paceline completion fish > ~/.config/fish/completions/paceline.fish

The completion matches this version: write the file again after an update. `eval` updates it at each start of a shell (about 1 s)."""
# Verbs whose first word is a recipe; the flags are those of all workloads.
OF_RECIPE = ("train", "launch", "plan", "preview")
EACH_WORKLOAD = ("classify-demo", "ssd-demo", "maskrcnn-demo")
BASH = """_paceline() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  if (( COMP_CWORD == 1 )); then words={verbs}
  elif [[ $before == --system ]]; then words={systems}
  elif [[ $before == --weights ]]; then words={weights}
  elif [[ $cur == -* ]]; then
    case "${{COMP_WORDS[1]}}/${{COMP_WORDS[2]}}" in
{flags}
    esac
  elif (( COMP_CWORD == 2 )); then
    case ${{COMP_WORDS[1]}} in
{firsts}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _paceline paceline"""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print the script of a shell."""
    return run_kind(
        printer, arguments, USAGE, "completion", {shell: partial(_print_script, shell=shell) for shell in SCRIPTS}
    )


def _print_script(printer: Printer, words: Sequence[str], shell: str) -> int:
    if words:
        print(USAGE)
        return 0 if words[0] in HELP else 2
    firsts, flags = {}, {}
    from paceline.cli.main import VERBS
    from paceline.config.recipes import RECIPES

    for verb in VERBS:
        text = _help(verb)
        firsts[verb] = list(RECIPES) if verb in OF_RECIPE else _kinds(text)
        kinds = [(kind,) for kind in firsts[verb]] if verb not in OF_RECIPE else [(name,) for name in EACH_WORKLOAD]
        for kind in kinds or [()]:
            key = f"{verb}/{kind[0] if kind and verb not in OF_RECIPE else '*'}"
            flags[key] = list(dict.fromkeys([*flags.get(key, ()), *_flags(_help(verb, *kind))]))
    print("\n".join(SCRIPTS[shell](firsts, flags)))
    return 0


def _help(*words: str) -> str:
    """All of a verb's help; "" where it has none for these words."""
    from paceline.cli.main import find_command

    out = io.StringIO()
    try:
        with redirect_stdout(out):
            find_command(words[0]).run(Printer(), [*words[1:], "--help-all"])
    except SystemExit as ended:
        return "" if ended.code else out.getvalue()
    return out.getvalue()


def _kinds(text: str) -> list[str]:
    """The kinds that a verb's usage lists."""
    heads = re.findall(r"^  ([a-z][a-z0-9]*(?:, [a-z0-9]+)*)(?: [A-Z\[.][^ ]*)*  ", text, flags=re.M)
    return [kind for head in heads for kind in head.split(", ")]


def _flags(text: str) -> list[str]:
    return [flag for line in re.findall(r"^  (--\S+(?: \| --\S+)?)", text, flags=re.M) for flag in line.split(" | ")]


def _values() -> tuple[str, str]:
    from paceline.distributed.device.systems import SYSTEMS
    from paceline.models.weights.download import PUBLISHED

    return " ".join(SYSTEMS), " ".join([*PUBLISHED, "none"])


def _bash(firsts: dict[str, list[str]], flags: dict[str, list[str]]) -> Iterator[str]:
    systems, weights = _values()
    yield BASH.format(
        verbs=shlex.quote(" ".join(firsts)),
        systems=shlex.quote(systems),
        weights=shlex.quote(weights),
        flags="\n".join(f"    {key}) words={shlex.quote(' '.join(some))} ;;" for key, some in flags.items()),
        firsts="\n".join(f"    {verb}) words={shlex.quote(' '.join(some))} ;;" for verb, some in firsts.items() if some),
    )


def _zsh(firsts: dict[str, list[str]], flags: dict[str, list[str]]) -> Iterator[str]:
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from _bash(firsts, flags)


def _fish(firsts: dict[str, list[str]], flags: dict[str, list[str]]) -> Iterator[str]:
    systems, weights = _values()
    yield f"complete -c paceline -n __fish_use_subcommand -a {shlex.quote(' '.join(firsts))}"
    for verb, some in firsts.items():
        if some:
            where = f"__fish_seen_subcommand_from {verb}; and test (count (commandline -opc)) -eq 2"
            yield f"complete -c paceline -n '{where}' -a {shlex.quote(' '.join(some))}"
    for key, some in flags.items():
        verb, _, kind = key.partition("/")
        seen = f"__fish_seen_subcommand_from {verb}" + (f"; and __fish_seen_subcommand_from {kind}" if kind != "*" else "")
        for flag in some:
            values = {"--system": systems, "--weights": weights}.get(flag, "")
            yield f"complete -c paceline -n '{seen}' -l {flag[2:]}" + (f" -r -a {shlex.quote(values)}" if values else "")


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
