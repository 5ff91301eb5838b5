"""One file for each command, with a function `run(arguments) -> exit code`. Nothing below paceline/cli imports them."""
