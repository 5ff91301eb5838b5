"""The command line: one verb a file, `main.py` chooses, `flags.py` parses a recipe's fields and the run's.

Here: flags, what is printed, exit codes. A verb's file imports what it runs inside its function, so that `--help` takes no torch.
Not here: anything that Python callers need too; a verb builds a request and hands it on.
"""
