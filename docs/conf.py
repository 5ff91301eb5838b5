"""The site: README, CONTRIBUTING, docs/ and results/, by `python -m sphinx -c docs . build/site` in the repository's root.

Pages are read where they lie, so that one relative link leads to a page here and on GitHub.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "paceline"
html_title = "paceline"
root_doc = "docs/README"
include_patterns = ["*.md", "docs/**.md", "results/**.md"]
exclude_patterns = [".*", "build", "paceline", "tests", "runs"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "bash"  # also of trees and drawings, where an apostrophe is no error
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_copy_source = False


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """The sidebar is what the first page has under "All pages"; in the files, GitHub would show a toctree as text."""
    if docname == root_doc:
        for group in source[0].partition("\n## All pages\n")[2].split("\n### ")[1:]:
            links = re.findall(r"^- \[(.*)\]\((.*)\.md\)", group, flags=re.M)
            pages = "\n".join(f"{title} <{page}>" for title, page in links)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {group.partition(chr(10))[0]}\n\n{pages}\n```\n"
    elif docname == "results/README":
        source[0] += "\n```{toctree}\n:glob:\n\n*/*\n```\n"


def add_front_door(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_front_door)
