"""The door of the command line: `main.py` chooses the verb's module, prints errors and returns exit codes.

Here: the verbs that span many rooms. Each other verb lies in the room that it works for. A verb's file imports what it runs inside its
function, so that `--help` takes no torch. Not here: anything that Python callers need too; a verb builds a request and hands it on.
"""
