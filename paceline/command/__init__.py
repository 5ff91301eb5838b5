"""A command line's words become checked values; what a command prints.

Here: what every verb needs: flags from dataclasses, names of recipes and systems, printed lines, errors and progress.
Not here: the verbs, which lie in the rooms that they work for (`cli/main.py` lists them), and anything that imports torch.
"""
