"""What may be written to a terminal: names come from other people's files, and a terminal obeys control characters.

Control characters, marks that turn the direction of writing, foreign line ends and halves of characters are shown as the
escapes that Python writes for them. Our own messages have line breaks; a name has none (`require_one_line`, _utils/names.py).
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

# C0 without tab and line feed, DEL and C1, marks of direction, line and paragraph separators, surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")
# A class's name is shown in tables and pictures; nothing longer is one.
MAX_NAME = 1000


def escape_text(text: str) -> str:
    """`text`, of one line or several, without anything that a terminal would obey."""
    return _UNSAFE.sub(lambda result: _escape(result[0]), text)


def escape_line(text: str) -> str:
    """As `escape_text`, and line breaks are escaped too."""
    return escape_text(text).replace("\n", "\\n")


def abbreviate(value: object, most: int = 60) -> str:
    """The beginning of what somebody's file holds, on one line, for a message; a large or deep value is never written out."""
    import reprlib  # here: --help does without

    text = value if isinstance(value, str) else reprlib.repr(value)
    return escape_line(text[:most])


def shorten(text: str, most: int) -> str:
    """`text`, or its beginning and "...", in at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


def join_names(names: Iterable[str], most: int = 5) -> str:
    """'a, b, c and 12 more'; 'none' for nothing."""
    names = list(names)
    if not names:
        return "none"
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: '1 image', '1,200 classes', '2 batches'."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def suggest_name(name: str, menu: Iterable[str]) -> str:
    """'Did you mean ssd-demo or ssd?'; "" where no name of the menu is near."""
    import difflib  # here: --help does without

    near = difflib.get_close_matches(name, list(dict.fromkeys(menu)), n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else ""


def tidy_name(name: str) -> str:
    """A name on one line, runs of white space as single spaces. Raises ValueError, in a few words, where it is none."""
    tidy = " ".join(name[: 2 * MAX_NAME].split())
    if not tidy:
        raise ValueError("it is empty")
    if len(tidy) > MAX_NAME:
        raise ValueError(f"it has more than {MAX_NAME:,} characters")
    if _HALF.search(tidy):
        raise ValueError("it contains a surrogate code point")
    return tidy


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


# A line of `format_definitions`: whole, such as a command; or a head with items, which are not broken where they fit.
Row: TypeAlias = "str | tuple[str, Sequence[str]]"


def text_width() -> int:
    """How wide lines may be: COLUMNS, the terminal's width, or 120 in a file; at least 40."""
    return max(40, shutil.get_terminal_size((120, 24)).columns)


def format_definitions(rows: Iterable[Row], width: int, *, head: int = 11) -> list[str]:
    """Lines of at most `width` columns: heads in a column of `head`, items beside them, three blanks apart."""
    lines: list[str] = []
    for row in rows:
        if isinstance(row, str):
            lines.append(row)
            continue
        line = f"{row[0]:<{head - 1}}"
        for item in row[1]:
            gap = "   " if line[head:].strip() else " "
            if len(line) + len(gap) + len(item) > width and gap == "   ":
                lines.append(line)
                line, gap = " " * (head - 1), " "
            first, *more = textwrap.wrap(item, width - len(line) - len(gap), **WORDS) or [""]
            lines += [f"{line}{gap}{first}", *(f"{'':{head}}{part}" for part in more)]
            line = lines.pop()
        lines.append(line.rstrip())
    return lines


# Of textwrap: paths and flags are not broken.
WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def parse_duration(text: str) -> float:
    """Seconds of 90s, 30m or 30min, 1.5h, 2d, H:MM:SS, or a bare number of seconds; 0 for anything else."""
    if clock := re.fullmatch(r"(?:(\d+):)?(\d+):(\d\d)", text.strip()):
        return float(int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + int(clock[3]))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)?", text.strip())
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[(match[2] or "s")[0]] if match else 0.0
