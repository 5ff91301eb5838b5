"""Carry out docs/tutorial-boxes.md and make its picture, docs/pictures: `PYTHONPATH=. python scripts/tutorial.py FOLDER` (minutes).

The picture is committed: GitHub shows it, and a site that rendered and trained for each build would take minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
# Most pixels along the picture's sides: some 60 kB.
SIDE = 720


def commands() -> list[str]:
    """The page's commands, in order."""
    blocks = re.findall(r"^```\n(.*?)^```", (ROOT / "docs" / "tutorial-boxes.md").read_text(), flags=re.M | re.S)
    return [line for block in blocks for line in block.splitlines()]


def carry_out(folder: Path, pictures: Path, steps: int = 0) -> None:
    """Each command in `folder`, its runs and answers; then the page's picture. Steps are for a test, 0 is the page's training.

    Raises CalledProcessError for a command that does not end well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures.mkdir(parents=True, exist_ok=True)
    for line in commands():
        print(f"$ {line}", flush=True)
        words = line.replace("paceline ", f"{sys.executable} -m paceline ", 1)
        short = f" --steps {steps} --eval-every {steps}" if steps and line.startswith("paceline train") else ""
        subprocess.run(["bash", "-c", words + short], cwd=folder, check=True)
    with Image.open(folder / "preview.png") as picture:
        small = picture.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    small.save(pictures / "preview.jpg", quality=82, optimize=True)


if __name__ == "__main__":
    carry_out(Path(sys.argv[1]), ROOT / "docs" / "pictures")
