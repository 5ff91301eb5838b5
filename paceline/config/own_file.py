"""A file among the user's own: it is written where there is none, or in place of an earlier one of ours, and of nothing else.

What a verb writes begins with a mark that tells whose it is. A link is never ours: it would lead elsewhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.plain_file import open_plain
from paceline.config.whole import sweep, write_whole

# JSON of ours begins with this key, a list of ours with this line; a PNG has it as a text, a JPEG as a comment.
KEY, LINE = "paceline", "# paceline: "
HTML = '<meta name="generator" content="paceline">'  # pages/frame.html.jinja
_MARKS = (
    rb'\A\{\s*"paceline": ',
    rb"\A# paceline: ",
    rb'\A<!doctype html>.*<meta name="generator" content="paceline">',
    rb"\A\x89PNG\r\n\x1a\n.*tEXtpaceline\0",
    rb"\A\xff\xd8.*\xff\xfe..paceline ",
    # Before files were marked: predictions of `eval`, pages, lists of unreadable photos.
    rb'\A\{"step": \d+, "kind": "[a-z]+", "classes": ',
    rb"\A<!doctype html>.{,200}<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; ",
    rb"\A/[^\n]+: (empty file \(0|truncated: |damaged: |not an image |gone\n|a link to a file that is gone|cannot be read \()",
)
_MARK = re.compile(b"|".join(_MARKS), re.DOTALL)
_LOOKED_AT = 4096  # bytes


def replaceable(path: Path) -> bool:
    """Whether a file of ours may be written at `path`: nothing is there, or a plain file that we wrote."""
    if not os.path.lexists(path):
        return True
    try:
        descriptor = open_plain(path)
    except OSError:
        return False
    try:
        return not path.is_symlink() and _MARK.match(os.read(descriptor, _LOOKED_AT)) is not None
    finally:
        os.close(descriptor)


def check_output(out: str | Path, flag: str = "--out") -> None:
    """Raises UserError where `flag` names something that is there and is no file of ours; "" names nothing."""
    path = Path(out)
    if str(out) and path.is_dir():
        raise UserError(f"{flag} {out}: this is a folder. Name a file.")
    if str(out) and not replaceable(path):
        raise UserError(
            f"{flag} {out}: exists and does not say that paceline wrote it, so it is not replaced. Name another file."
        )


def write_output(out: str | Path, content: str | bytes, flag: str = "--out") -> None:
    """Write what `flag` asks for, whole or not at all, in a folder that is made.

    content  begins with one of the marks, or cannot be replaced later
    Raises UserError as `check_output`, and where the file cannot be written.
    """
    check_output(out, flag)
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, {path.name})
        write_whole(path, content)
    except OSError as problem:
        raise UserError(f"{flag} {out}: cannot be written ({problem.strerror}). Name another file.") from None
