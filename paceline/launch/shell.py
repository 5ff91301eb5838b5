"""Commands and environments as lines of a shell script that a person can read."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from paceline.dist.exit_code import EXIT_CODE_FILE
from paceline.launch.job import Job, Variable, Words

WIDTH = 100


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
