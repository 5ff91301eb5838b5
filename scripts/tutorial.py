"""Run a section of docs/tutorials/first-model.md and make its pictures: `PYTHONPATH=. python scripts/tutorial.py NAME FOLDER`.

NAME is classes, boxes, or masks. FOLDER receives the runs and predictions (minutes). The pictures are committed, because GitHub shows
them and a site that trained for each build would take minutes. Their names are NAME-WHAT:

    NAME-preview.jpg    what `paceline preview` drew
    NAME-loss.svg       the chart of that name in the report of `paceline train`
    NAME-answers.jpg    the first pictures that `paceline predict` drew
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorials" / "first-model.md"
HEADINGS = {"classes": "Image classification", "boxes": "Object detection", "masks": "Instance segmentation"}
NAMES = tuple(HEADINGS)
# Most pixels along the sides of a picture, some 60 kB; how many answers are shown, and pixels between them.
SIDE, ANSWERS, GAP = 720, 4, 8
# What a page's variables are in a picture of its own, which has no page around it: seen on white and on black.
COLOURS = {
    **{"muted": "#7d8590", "grid": "#9aa3ad55", "series-1": "#2f6fed", "series-2": "#e5683a", "series-3": "#0f9d8a"},
    **{"series-4": "#8f55e0", "series-5": "#cf3d96", "series-6": "#a98600", "series-7": "#697386"},
}


def section(name: str) -> str:
    """Return the text of a task's section."""
    return PAGE.read_text().partition(f"\n## {HEADINGS[name]}\n")[2].partition("\n## ")[0]


def commands(name: str) -> list[str]:
    """Return the commands of a task's section in order, without their comments."""
    (block,) = re.findall(r"^```\n(.*?)^```", section(name), flags=re.M | re.S)
    return [line.partition("  #")[0] for line in block.splitlines()]


def carry_out(name: str, folder: Path, pictures: Path, steps: int = 0) -> None:
    """Run each command in `folder`, then make the pictures of the section.

    Args:
        steps (int): length of the training, for a test. 0 trains as the page does.

    Raises:
        CalledProcessError: if a command fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures.mkdir(parents=True, exist_ok=True)
    for line in commands(name):
        print(f"$ {line}", flush=True)
        words = line.replace("paceline ", f"{sys.executable} -m paceline ", 1)
        short = f" --max-steps {steps} --eval-every {steps}" if steps and line.startswith("paceline train") else ""
        subprocess.run(["bash", "-c", words + short], cwd=folder, check=True)
    make_pictures(name, folder, pictures)


def make_pictures(name: str, folder: Path, pictures: Path) -> None:
    """The pictures of what the commands left in `folder`."""
    with Image.open(folder / "preview.png") as picture:
        save(picture, pictures / f"{name}-preview.jpg")
    files = answered(folder / "answers")
    save(in_rows([files[:2], files[2:]]), pictures / f"{name}-answers.jpg")
    report = (folder / "runs" / name / "report.html").read_text()
    (pictures / f"{name}-loss.svg").write_text(chart(report, "Loss"))


def answered(folder: Path) -> list[Path]:
    """The first pictures below `folder`, by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))[:ANSWERS]


def in_rows(rows: list[list[Path]]) -> Image.Image:
    """Pictures in rows of one width; those of a row have one height."""
    lines = []
    for files in rows:
        opened = [Image.open(file).convert("RGB") for file in files]
        wide = sum(picture.width / picture.height for picture in opened)
        height = round((SIDE - GAP * (len(files) - 1)) / wide)
        line, left = Image.new("RGB", (SIDE, height), "white"), 0
        for picture in opened:
            small = picture.resize((round(picture.width * height / picture.height), height))
            line.paste(small, (left, 0))
            left += small.width + GAP
        lines.append(line)
    whole, top = Image.new("RGB", (SIDE, sum(line.height for line in lines) + GAP * (len(lines) - 1)), "white"), 0
    for line in lines:
        whole.paste(line, (0, top))
        top += line.height + GAP
    return whole


def save(picture: Image.Image, file: Path) -> None:
    """Small, as a JPEG."""
    small = picture.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    small.save(file, quality=82, optimize=True)


def chart(report: str, title: str) -> str:
    """A chart of a report as a file of its own."""
    found = re.search(rf'<svg viewBox="([^"]*)" role="img" aria-label="{title}">.*?</svg>', report, flags=re.S)
    if found is None:
        raise SystemExit(f"the report has no chart {title!r}")
    size = 'width="{}" height="{}"'.format(*found[1].split()[2:])
    heads = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" font-family="sans-serif" {size} '
    text = re.sub(r"var\(--([\w-]+)\)", lambda variable: COLOURS[variable[1]], found[0])
    return text.replace("<svg ", heads, 1) + "\n"


if __name__ == "__main__":
    carry_out(sys.argv[1], Path(sys.argv[2]), ROOT / "docs" / "pictures")
