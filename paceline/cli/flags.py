"""Flags are the fields of dataclasses. The recipe is chosen first; its fields are then the flags, its values their defaults."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, NoReturn, TypeVar

from paceline._utils.errors import PacelineError, RecipeError
from paceline.cli.help import HELP, SYSTEM, HelpEntry, list_help_entries, parse_help_request, print_help
from paceline.cli.printing import SHARED, Printer
from paceline.config.constraints import get_annotations
from paceline.config.foreign_flags import find_equivalent
from paceline.config.plan import count_ranks
from paceline.config.published import check_nodes, published_for, system_for
from paceline.config.recipe import NO_FLAG, Recipe, check_batch_and_lr, check_recipe, resolve_length
from paceline.config.run import RunOptions
from paceline.config.system import System, check_system, merge_env
from paceline.distributed.comm.launcher import is_first_on_node
from paceline.distributed.device.systems import choose_system
from paceline.training.request import Request
from paceline.training.run_arguments import choose_recipe

Fields = TypeVar("Fields")

# Flags of every command: tyro's own, for scripts.
ALWAYS = ("--tyro-print-completion", "--tyro-write-completion", "--tyro-print-introspection")
# Those that cut a batch in another way than it was published.
CUTTING = {"global_batch_size", "bn_batch_size", "system.ranks_per_node"}


@dataclasses.dataclass(frozen=True)
class ParsedArgs:
    """One parsed command line."""

    name: str  # the recipe's name
    recipe: Recipe
    system_name: str
    options: Any  # the verb's own dataclass
    given: frozenset[str]  # dotted names of the fields set by hand; "system" where a system was named
    system_flags: System  # as parsed; where the machine is asked, only those of its fields count that were given
    asks: bool  # whether the machine is asked

    @cached_property
    def system(self) -> System:
        """Where to compute. The machine is detected at the first use: that takes torch, which no refusal should wait for.

        Raises RecipeError for a machine that lacks what was asked for, and for numbers that cannot describe one.
        """
        system = self.system_flags
        if self.asks:
            names = [entry.name for entry in dataclasses.fields(System)]
            explicit = {name for name in names if self.given & {f"system.{name}", f"system.no_{name}"}}
            changes = {name: getattr(system, name) for name in explicit}
            system = dataclasses.replace(choose_system(self.system_name), **changes)
        check_system(system)
        return system

    def note_published(self) -> str:
        """A note on what was published for --nodes; "" where nothing was, or where flags cut the batch in another way.

        Raises RecipeError where the recipe cannot be cut over them, naming what was published.
        """
        if self.options.dedicated_eval_ranks or self.given & CUTTING:
            return ""
        return check_nodes(self.name, self.system_name, self.options.nodes)

    def request(self, command: str, *, repeats: bool = False) -> Request:
        """The request of this command line, whose system is as the flags name it: the machine was not asked.

        repeats  recipe and options come from a run.json
        """
        system = self.system_flags
        return Request(self.name, self.recipe, self.system_name, system, self.options, self.given, command, repeats)


def parse(printer: Printer, arguments: Sequence[str], default: Fields, prog: str, description: str = "") -> Fields:
    """Flags of one dataclass, with `default`'s values.

    printer   obeys --quiet and --json where they are none of these flags

    Raises PacelineError for an unknown flag, or a number that no verb can mean by it; prints a message and exits with 2 for a value
    that does not fit its flag.
    """
    if (requested := parse_help_request(arguments)) is not None:
        print_help(requested, prog, description, [*list_help_entries(default), *_shared(default)])
    own: Any = default
    known = _flags_of(default)
    arguments = printer.accept_foreign(printer.taken(arguments, [entry.name for entry in dataclasses.fields(own)]), known)
    [flags] = _parse([("", default)], arguments, known, prog)
    check_shared(flags)
    printer.json = getattr(flags, "json", False) is True
    return flags


def explain(prog: str, about: str, flags: Any, words: Sequence[str]) -> NoReturn:
    """Print the --help of a verb that needs a recipe, without one: what it does, its usage, its own flags; exit with 2 where no help
    is asked for, but words are missing.
    """
    print_help(
        parse_help_request(words) or "", prog, about, [*list_help_entries(flags), *_shared(flags)], code=0 if words else 2
    )


def _shared(flags: Any) -> list[HelpEntry]:
    """The flags that every verb has, but for those that are its own."""
    own = {f"--{entry.name}" for entry in dataclasses.fields(flags)}
    return [HelpEntry("run", name, "", text, "") for name, text in SHARED.items() if name not in own]


def run_kind(
    printer: Printer,
    arguments: Sequence[str],
    usage: str,
    verb: str,
    kinds: Mapping[str, Callable[[Printer, Sequence[str]], int]],
) -> int:
    """Carry out `paceline VERB KIND ...`, and return its exit code; print `usage` for --help, and with 2 where no kind is named.

    Raises PacelineError for an unknown kind.
    """
    if not arguments or arguments[0] in HELP:
        print(usage)
        return 0 if arguments else 2
    if arguments[0] not in kinds:
        raise PacelineError(f"{verb} {arguments[0]!r}: not found. Use one of {', '.join(kinds)}.")
    return kinds[arguments[0]](printer, arguments[1:])


def parse_run_args(
    arguments: Sequence[str],
    options: Any,
    *,
    verb: str,
    base: tuple[str, Recipe, str, System] | None = None,
    description: str = "",
    printer: Printer | None = None,
) -> ParsedArgs:
    """`RECIPE [--system NAME] [--flags]`: the recipe's fields flat, the system's under --system., `options` flat.

    printer   obeys --quiet and --json where they are none of the options
    base      (recipe name, recipe, system name, system) when they come from a run instead of from the menu
    Raises RecipeError for an unknown recipe or system, or for a changed batch without its learning rate, PacelineError for
    an unknown flag.
    """
    own = [entry.name for entry in dataclasses.fields(options)]
    words = _split_pairs((printer := printer or Printer()).taken(_gathered(arguments, "--logger"), own), "--target")
    if base is None:
        name, *words = [_first_word(words, verb), *words[1:]]
        recipe, system_name, system = choose_recipe(name), "auto", None
    else:
        name, recipe, system_name, system = base
    known = (*_flags_of(recipe), *_flags_of(System(), "system."), *_flags_of(options), "--system")
    asked_system, words = pop_flag_value(printer.accept_foreign(words, known), "--system", "h100x8")
    if asked_system:
        system_name, system = asked_system, None
    asks = system is None and needs_machine(system_name, words)
    if asks:
        system = System()
    elif system is None:
        system = system_for(name, system_name, choose_system(system_name), _given(words))
    if (help_of := parse_help_request(words)) is not None:
        entries = [
            HelpEntry("run", "--system", "NAME", SYSTEM, "auto"),
            *list_help_entries(options),
            *_shared(options),
            *list_help_entries(recipe, group="recipe"),
            *list_help_entries(system, "system.", "system"),
        ]
        print_help(help_of, f"{verb} {name}", description or _about(name, recipe), entries)
    parts = [("", recipe), ("system.", system), ("", options)]
    changed, where, options = _parse(parts, words, known, f"{verb} {name}")
    printer.json, explicit = getattr(options, "json", False) is True, _given(words)
    changed = resolve_length(changed, explicit)
    check_batch_and_lr(recipe, changed, explicit)
    check_recipe(changed)
    # Number format and accelerator are not known before the machine is detected: what depends on them is checked later.
    later = {"precision": "fp32", "loss_scale": 0.0, "cuda_graph": False, "kernels": "torch"} if asks else {}
    check_system(dataclasses.replace(where, **later))
    # Variables: the system's, over them those published for so many nodes, over them the run's and the command line's.
    # The flags of a verb whose launcher decides the number of nodes have none.
    nodes = (
        math.ceil(count_ranks(options, explicit, where.ranks_per_node) / where.ranks_per_node)
        if hasattr(options, "nodes")
        else 0
    )
    published = published_for(name, system_name, nodes)
    layers = (system.env, published.env if published else ())
    env = merge_env(*(layers if base is None or asked_system else reversed(layers)))
    if "system.env" in explicit:
        env = merge_env(env, where.env)
    explicit |= {"system"} if asked_system or any(name.startswith("system.") for name in explicit) else set()
    return ParsedArgs(name, changed, system_name, options, frozenset(explicit), dataclasses.replace(where, env=env), asks)


def needs_machine(system_name: str, words: Sequence[str]) -> bool:
    """Whether this machine is detected after parsing; --help detects auto never and a named machine at once."""
    from paceline.distributed.device.systems import DETECTED

    return system_name in DETECTED and (system_name == "auto" or parse_help_request(words) is None)


def _parse(parts: Sequence[tuple[str, Any]], words: Sequence[str], known: Sequence[str], prog: str) -> list[Any]:
    """Dataclasses' instances, each after the prefix of its flags, with what the words say of their fields.

    The parser sees only the fields that are named: it takes 0.3 ms for each, and a recipe has 160.
    """
    _check_names(words, known, prog)
    if not words:
        return [node for _, node in parts]
    import tyro

    named = _given(words)
    fields = {}
    for number, (above, node) in enumerate(parts):
        part = _named(node, above, named)
        fields[f"part_{number}"] = (Annotated[type(part), tyro.conf.arg(name=above[:-1])], part)
    flags = _instance(fields)
    parsed = tyro.cli(
        type(flags), default=flags, args=list(words), prog=f"paceline {prog}", console_outputs=is_first_on_node()
    )
    return [_merged(node, part) for (_, node), part in zip(parts, vars(parsed).values(), strict=True)]


def _named(node: Any, above: str, named: set[str]) -> Any:
    """An instance of only those fields of a dataclass's instance that are named, or that stand without a flag.

    above   the prefix of its flags
    named   dotted names; one of the parser's own flags means all fields
    """
    from tyro.conf import Positional

    hints, fields = get_annotations(type(node)), {}
    for entry in dataclasses.fields(node):
        value, name = getattr(node, entry.name), f"{above}{entry.name.rstrip('_')}"
        if dataclasses.is_dataclass(value):
            if vars(part := _named(value, f"{name}.", named)):
                fields[entry.name] = (type(part), part)
            continue
        kind = hints.get(entry.name, type(value))
        wanted = not named.isdisjoint((name, f"{above}no_{entry.name}", *_given(ALWAYS)))
        if entry.name != NO_FLAG and (wanted or Positional in getattr(kind, "__metadata__", ())):
            fields[entry.name] = (kind, value)
    return _instance(fields)


def _instance(fields: Mapping[str, tuple[Any, Any]]) -> Any:
    """An instance of a new dataclass. fields: name -> (annotation, value); of an empty help the parser reads no source file."""
    no_help = {"help": ""}
    kinds = [(name, kind, dataclasses.field(metadata=no_help)) for name, (kind, _) in fields.items()]
    return dataclasses.make_dataclass("Flags", kinds)(*(value for _, value in fields.values()))


def _merged(node: Any, part: Any) -> Any:
    """A dataclass's instance with the values of some of its fields, as _named gave them to the parser."""
    values = {
        name: _merged(getattr(node, name), value) if dataclasses.is_dataclass(value) else value
        for name, value in vars(part).items()
    }
    return dataclasses.replace(node, **values) if values else node


def _check_names(words: Sequence[str], known: Sequence[str], prog: str) -> None:
    """Refuse an unknown flag in one line that names its nearest neighbors."""
    for word in words:
        flag = _spelt(word)
        if not flag.startswith("--") or flag in known or flag in ALWAYS:
            continue
        bare = {name.removeprefix("--"): name for name in known}
        if flag in _flags_of(RunOptions()) and prog.split(maxsplit=1)[0] in ("plan", "preview"):
            raise PacelineError(
                f"{flag}: a flag of `paceline train`, and not of the recipe, so it is not supported here. All flags: "
                f"paceline {prog} --help-all"
            )
        if others := _others_with(flag, known):
            raise PacelineError(
                f"{flag}: only supported by recipes of {' and '.join(others)}, not by this one. All flags: "
                f"paceline {prog} --help-all"
            )
        near, hint = find_equivalent(flag.removeprefix("--"), known)
        near = near or [bare[name] for name in difflib.get_close_matches(flag.removeprefix("--"), bare, n=3)]
        if not hint and near:
            hint = f"Did you mean {' or '.join(near[:3])}?"
        hint += " " if hint else ""
        raise PacelineError(f"{word.partition('=')[0]}: unknown flag. {hint}All flags: paceline {prog} --help-all")


def _others_with(flag: str, known: Sequence[str]) -> list[str]:
    """The workloads whose recipes have a flag that this recipe has not."""
    from paceline.models.registry import WORKLOADS

    if "--global-batch-size" not in known:  # no recipe's flags
        return []
    parts = {name: (*_flags_of(one.model, "model."), *_flags_of(one.input, "input.")) for name, one in WORKLOADS.items()}
    return [name for name, flags in parts.items() if flag in flags]


def _given(words: Sequence[str]) -> set[str]:
    """Dotted names of the fields that the words set."""
    return {_spelt(word)[2:].replace("-", "_") for word in words if word.startswith("--")}


def _spelt(word: str) -> str:
    """A flag without its value, its name spelt with dashes as --help has it."""
    return word.partition("=")[0].replace("_", "-")


def _flags_of(node: Any, above: str = "") -> tuple[str, ...]:
    """The flags that a dataclass's fields make."""

    def walk(inside: Any, prefix: str) -> Iterator[str]:
        for entry in dataclasses.fields(inside):
            if entry.name == NO_FLAG:
                continue
            value = getattr(inside, entry.name)
            if dataclasses.is_dataclass(value):
                yield from walk(value, f"{prefix}{entry.name}.")
                continue
            yield f"--{prefix}{entry.name.rstrip('_')}".replace("_", "-")  # from_ is Python's way to say from
            if isinstance(value, bool):
                yield f"--{prefix}no-{entry.name}".replace("_", "-")

    return tuple(walk(node, above))


def _gathered(words: Sequence[str], flag: str) -> list[str]:
    """`--logger A --logger B` as `--logger A B`, at the end: tyro keeps only the last of a repeated flag."""
    values, rest, inside = [], [], False
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            inside = name == flag
            word = value if inside else word
            if inside and not equals:
                continue
        (values if inside else rest).append(word)
    return [*rest, flag, *values] if values else list(words)


def _split_pairs(words: Sequence[str], flag: str) -> list[str]:
    """`--target top1=0.759` as `--target top1 0.759`, as tyro reads pairs."""
    result, inside = [], False
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            inside = name == flag
            result += [name, *value.split("=")] if inside and value else [word]
        else:
            result += word.split("=") if inside else [word]
    return result


def _first_word(words: list[str], verb: str) -> str:
    from paceline.config.recipes import RECIPES

    if not words or words[0].startswith("-"):
        menu = "\n".join(f"  {name}" for name in RECIPES)
        raise RecipeError(f"a recipe is required: paceline {verb} RECIPE [flags]\n{menu}\nEach recipe has --help.")
    return words[0]


def pop_flag_value(words: Sequence[str], flag: str, example: str) -> tuple[str, list[str]]:
    """The value of `flag` among the words, "" where it is not there, and the other words.

    Raises RecipeError for a flag without a value, naming the example.
    """
    value, rest, words = "", [], list(words)
    while words:
        word = words.pop(0)
        if word == flag:
            if not words:
                raise RecipeError(f"{flag}: a value is required. Example: {flag} {example}")
            value = words.pop(0)
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return value, rest


def _about(name: str, recipe: Recipe) -> str:
    """The beginning of a recipe's --help: its docstring's first paragraph."""
    from paceline.config.recipes import RECIPES
    from paceline.config.recipes.published_rows import ROWS

    text = inspect.getdoc(RECIPES[name]) if name in RECIPES else ROWS[name].about if name in ROWS else None
    return (text or f"{name}: {recipe.task}").split("\n\n")[0]


def check_shared(flags: Any) -> None:
    """Raises PacelineError for a negative --workers, where `flags` has that flag."""
    workers = getattr(flags, "workers", 0)
    if workers < 0:
        raise PacelineError(f"--workers {workers}: must be 0 (one per core) or more.")
