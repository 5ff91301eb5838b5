"""The command line: `main.py` chooses the command's module in commands/, prints errors and returns exit codes.

Here: the parser, the printed lines, the help, and texts that several commands share. A command's file imports what it runs inside
its function, so that `--help` takes no torch. Not here: anything that Python callers need too.
"""
