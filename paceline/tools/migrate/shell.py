"""Shell text read, never run: assignments, exports, arrays, `${NAME:-default}`, continued lines, chains; -> simple commands.

Both branches of an `if` are read, the later assignment stays. What only a running shell knows (`$(...)`, a variable that is set
nowhere) stays in the text as it was written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# Words that open or close a block; what follows them on the line is a command of its own.
KEYWORDS = {
    "if",
    "then",
    "else",
    "elif",
    "fi",
    "do",
    "done",
    "while",
    "until",
    "{",
    "}",
    "!",
    "time",
    "esac",
    "exec",
    "nohup",
}
EXPORTS = {"export", "readonly", "declare", "local", "typeset"}
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*")
# $NAME, ${NAME}, ${NAME:-word}, ${NAME-word}, ${NAME:=word}, ${NAME[@]}; anything else stays.
DEFAULT = re.compile(r"\$\{(\w+):?=([^}]*)\}")
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n.*?\n\s*\1[ \t]*(?=\n|$)", re.DOTALL)
# A place to fill in, as READMEs write it: <path/to/data/dir>.
PLACE = re.compile(r"<([A-Za-z][\w/. -]*)>")
BRACED = re.compile(r"\{([A-Za-z_]\w*)(\[[@*0-9]+\])?(?:(:?[-=])(.*))?\}", re.DOTALL)


@dataclass
class ShellState:
    """What is known at a point of the text."""

    variables: dict[str, str] = field(default_factory=dict)  # name -> value; an array's words are joined by blanks
    exported: set[str] = field(default_factory=set)  # names that children see
    sourced: list[str] = field(default_factory=list)  # files that the text reads


@dataclass(frozen=True)
class ShellCommand:
    """One simple command."""

    words: tuple[str, ...]
    variables: dict[str, str]  # all that are set when it starts, its own `NAME=value` words included


def parse_commands(
    text: str, shell: ShellState, source: Callable[[str], str | None] = lambda _: None
) -> list[ShellCommand]:
    """The simple commands of `text`, in order; `shell` is changed as they change it.

    source  the text of a file that is sourced, by its name as written; None where it cannot be read
    """
    results = []
    for raw in _simple(text):
        words = [word for piece in raw for word in _expand(piece, shell.variables)]
        while words and words[0] in KEYWORDS:
            words, raw = words[1:], raw[1:]
        if words[:1] == [":"]:  # : "${NAME:=value}"
            for piece in raw[1:]:
                for match in DEFAULT.finditer(piece):
                    if not shell.variables.get(match[1]):
                        shell.variables[match[1]] = substitute_variables(match[2], shell.variables)
        if not words or words[0] in ("for", "case", "function", "[", "[[", "test", ":"):
            continue
        own: dict[str, str] = {}
        exporting = words[0] in EXPORTS
        rest = raw[1:] if exporting else raw
        while rest and (match := ASSIGNMENT.match(rest[0])):
            text = rest[0][match.end() :]
            value, before = _value(text, {**shell.variables, **own}), shell.variables.get(match[1], "") if match[2] else ""
            own[match[1]] = f"{before} {value}".strip() if before and text.startswith("(") else f"{before}{value}"
            rest = rest[1:]
        words = [word for piece in rest for word in _expand(piece, {**shell.variables, **own})]
        if exporting or not words:
            shell.variables.update(own)
            if exporting:
                shell.exported.update(own, (word for word in words if NAME.fullmatch(word)))
            continue
        if words[0] in ("source", ".") and len(words) > 1:
            shell.sourced.append(words[1])
            if (inner := source(words[1])) is not None:
                results += parse_commands(inner, shell, source)
            continue
        inner = _inner(words)
        if inner:  # bash -c "..."
            results += parse_commands(inner, ShellState({**shell.variables, **own}, shell.exported, shell.sourced), source)
        else:
            results.append(ShellCommand(tuple(words), {**shell.variables, **own}))
    return results


def _inner(words: list[str]) -> str:
    """The text that a shell among the words is given with -c; what stands before it (mpirun, docker) starts it."""
    for index in range(len(words) - 2):
        if words[index].rpartition("/")[2] in ("bash", "sh") and re.fullmatch("-[a-z]*c", words[index + 1]):
            text = words[index + 2]
            return (
                f"{' '.join(map(shlex.quote, words[:index]))} {text}" if index and not re.search("[;&|\n]", text) else text
            )
    return ""


def _value(text: str, variables: dict[str, str]) -> str:
    """An assignment's value; an array's words joined by blanks."""
    if text.startswith("(") and text.endswith(")"):
        return " ".join(word for raw in _simple(text[1:-1]) for piece in raw for word in _expand(piece, variables))
    return " ".join(_expand(text, variables)) if text else ""


def _simple(text: str) -> Iterator[list[str]]:
    """The words of each simple command, unexpanded, quotes still on."""
    text = HEREDOC.sub("", text.replace("\r\n", "\n").replace("\\\n", " "))
    text = PLACE.sub(lambda match: re.sub(r"\W+", "_", match[1]).upper(), text)
    words: list[str] = []
    word, depth, position = "", 0, 0  # depth of an array's parentheses, whose line ends are blanks
    while position < len(text):
        letter = text[position]
        if letter in "'\"" or letter == "\\" or text.startswith(("$(", "${"), position) or letter == "`":
            end = _end(text, position)
            word, position = word + text[position:end], end
            continue
        if letter == "#" and (text[position - 1] in " \t\n" if depth else not word):
            position = (text.find("\n", position) + len(text) + 1) % (len(text) + 1)
            continue
        if letter == "(" and (depth or word.endswith("=")):
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif not depth and (letter in ";|&\n()<>" or letter in " \t"):
            if word:
                words.append(word)
                word = ""
            if letter in "<>":  # a redirection: its file is no word
                position = _after_redirection(text, position)
                words = words[:-1] if words and words[-1] in ("1", "2", "&") else words
                continue
            if letter not in " \t":
                if words:
                    yield words
                words = []
            position += 1
            continue
        word += letter
        position += 1
    if word:
        words.append(word)
    if words:
        yield words


def _after_redirection(text: str, position: int) -> int:
    while position < len(text) and text[position] in "<>& \t":
        position += 1
    while position < len(text) and text[position] not in " \t\n;|&()":
        position += 1
    return position


def _end(text: str, start: int) -> int:
    """Where what opens at `start` (a quote, an escape, $(...), ${...}, a backquote) has ended; the text's end where it never does."""
    letter = text[start]
    if letter == "\\":
        return min(start + 2, len(text))
    if letter in "'`":
        return (text.find(letter, start + 1) + 1) or len(text)
    closing = {"(": ")", "{": "}"}[text[start + 1]] if letter == "$" else '"'
    position = start + (2 if letter == "$" else 1)
    while position < len(text):
        if text[position] == closing:
            return position + 1
        opens = (
            text[position] == "\\"
            or text.startswith(("$(", "${"), position)
            or (closing != '"' and text[position] in "'\"`")
        )
        if closing == ")" and text[position] == "(":
            position = _end(text[:position] + "$" + text[position:], position) - 1
            continue
        position = _end(text, position) if opens else position + 1
    return len(text)


def _expand(word: str, variables: dict[str, str]) -> list[str]:
    """A raw word as the shell would hand it on: quotes off, variables in, split where they stand unquoted."""
    parts: list[str] = [""]
    quoted = False
    position = 0
    while position < len(word):
        letter = word[position]
        end = position + 1
        if letter == "'":
            end = _end(word, position)
            parts[-1] += word[position + 1 : end - 1]
            quoted = True
        elif letter == '"':
            end = _end(word, position)
            inside = word[position + 1 : end - 1]
            quoted = True
            if re.fullmatch(r"\$\{\w+\[@\]\}", inside):  # an array: its words stay apart
                values = substitute_variables(inside, variables).split()
                parts[-1] += values[0] if values else ""
                parts += values[1:]
                quoted = bool(values)
            else:
                parts[-1] += substitute_variables(re.sub(r'\\(["\\$`])', r"\1", inside), variables)
        elif letter == "\\":
            end = position + 2
            parts[-1] += word[position + 1 : end]
        elif letter == "$":
            end = _end(word, position) if word[position + 1 : position + 2] in ("(", "{") else _name_end(word, position)
            values = substitute_variables(word[position:end], variables)
            pieces = values.split() if not values.startswith("$(") else [values]
            if pieces:
                parts[-1] += pieces[0]
                parts += pieces[1:]
        else:
            parts[-1] += letter
        position = end
    return [part for part in parts if part or quoted]


def _name_end(word: str, position: int) -> int:
    match = NAME.match(word, position + 1)
    return match.end() if match else position + 1


def substitute_variables(text: str, variables: dict[str, str]) -> str:
    """`text` with each variable's value in its place; one that is set nowhere and has no default stays as it is written."""
    out, position = "", 0
    while position < len(text):
        if text[position] != "$":
            out, position = out + text[position], position + 1
            continue
        if text.startswith("${", position):
            end = _end(text, position)
            match = BRACED.fullmatch(text[position + 1 : end])
            if match is None:
                out += text[position:end]
            elif variables.get(match[1]) or (match[1] in variables and not (match[3] or "").startswith(":")):
                value = variables[match[1]]
                index = (match[2] or "[@]")[1:-1]
                out += value if index in "@*" else (value.split() + [""] * 99)[int(index)]
            else:
                out += (
                    substitute_variables(match[4], variables).strip("\"'")
                    if match[3]
                    else variables.get(match[1], text[position:end])
                )
        elif text.startswith("$(", position):
            end = _end(text, position)
            out += _arithmetic(text[position:end], variables)
        else:
            end = _name_end(text, position)
            out += variables.get(text[position + 1 : end], text[position:end])
        position = end
    return out


def _arithmetic(text: str, variables: dict[str, str]) -> str:
    """$((A * B)) of whole numbers as a number; anything else as it is written."""
    inner = substitute_variables(text[3:-2], variables) if text.startswith("$((") else ""
    inner = NAME.sub(lambda match: variables.get(match[0], match[0]), inner)
    parts = re.fullmatch(r"\s*(\d+)\s*([*+-])\s*(\d+)\s*", inner)
    if parts is None:
        return text
    left, right = int(parts[1]), int(parts[3])
    return str({"*": left * right, "+": left + right, "-": left - right}[parts[2]])
