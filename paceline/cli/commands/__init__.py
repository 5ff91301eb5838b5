"""One file for each command, with a function `run(printer, arguments) -> exit code`. Nothing below paceline/cli imports them."""
