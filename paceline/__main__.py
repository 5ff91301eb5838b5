"""`python -m paceline`: the same command line, for launchers that start modules (torchrun -m paceline train ...)."""

import sys

from paceline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
