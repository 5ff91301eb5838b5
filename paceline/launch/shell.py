"""Commands and environments as lines of a shell script that a person can read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields

from paceline.config.errors import UserError
from paceline.config.printable import one_line
from paceline.launch.job import Job, Variable, Words
from paceline.ranks.exit_code import EXIT_CODE_FILE

WIDTH = 100


def check_lines(job: Job) -> None:
    """Refuse what would not stay on its line: comments and #SBATCH lines end with the line, and no quotes help there.

    Raises UserError naming the flag.
    """
    for what, text in _on_lines(job):
        if text != one_line(text):
            raise UserError(
                f"{what} {one_line(text)}: it holds a line break or another control character, and would be read as something "
                "else in a script. Give it another name."
            )
    if job.through == "slurm" and "\\" in str(job.workdir):
        raise UserError(
            f"the working directory {job.workdir}: Slurm reads \\ in a folder's name as a sign of its own. Start elsewhere."
        )


def _on_lines(job: Job) -> Iterator[tuple[str, str]]:
    """(where it comes from, what stands on a line of its own or behind a #)."""
    yield "the folder (--out)", str(job.folder)
    yield "the working directory", str(job.workdir)
    yield "--image", job.image
    for mount in job.mounts:
        yield "to be mounted:", f"{mount.host}"
        yield "to be mounted:", mount.inside
    for field in fields(job.batch):
        value = getattr(job.batch, field.name)
        for text in value if isinstance(value, tuple) else (value,):
            yield f"--slurm.{field.name}", str(text)


def exports(variables: Sequence[Variable]) -> str:
    """`export NAME=value  # why`, a line each."""
    return "".join(f"export {one.name}={shlex.quote(one.value)}  # {one.why}\n" for one in variables)


def environment(job: Job) -> tuple[Variable, ...]:
    """The job's variables and our own."""
    own = [Variable(EXIT_CODE_FILE, str(job.exit_code_file), "rank 0 leaves its exit code here; launchers swallow it")]
    own.append(Variable("PYTHONUNBUFFERED", "1", "what ranks print is seen at once"))
    if job.start == "mpirun":
        own.append(Variable("TERM", "dumb", "mpirun gives ranks a terminal, but what they print goes into a log"))
    return (*job.environ, *own)


def in_lines(command: Words, indent: str = "    ") -> str:
    """A command quoted for the shell, broken into lines before its flags."""
    lines, line = [], ""
    for word in map(shlex.quote, command):
        if (line and word.startswith("-") and len(line) + len(word) > WIDTH - 40) or len(line) + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return f" \\\n{indent}".join([*lines, line])
