"""The site: README, CONTRIBUTING, docs/ and results/, by `python -m sphinx -c docs . build/site` in the repository's root.

Pages are read where they lie, so that one relative link leads to a page here and on GitHub.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from posixpath import normpath

from sphinx.application import Sphinx

project = "paceline"
html_title = "paceline"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "results/**.md"]
exclude_patterns = [".*", "build/site", "paceline", "tests", "runs"]
# The button that copies is a convenience: without its package the site is built alike.
extensions = ["myst_parser", *(name for name in ["sphinx_copybutton"] if find_spec(name))]
copybutton_exclude = ".linenos, .c1"  # a command is copied without the comment behind it
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
highlight_language = "bash"  # also of trees and drawings, where an apostrophe is no error
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_copy_source = html_show_copyright = False
html_favicon = "theme/icon.svg"
html_static_path = ["theme"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "theme" / "search.js")
html_theme_options = {
    "light_logo": "icon.svg",
    "dark_logo": "icon.svg",
    "light_css_variables": {"color-brand-primary": "#1f4fbf", "color-brand-content": "#1f4fbf"},
    "dark_css_variables": {"color-brand-primary": "#8fb0ff", "color-brand-content": "#8fb0ff"},
}


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill the sidebar from the index page of each folder: one caption per heading. On GitHub a toctree would show as text."""
    if docname == root_doc:
        for folder in ("tutorials", "how-to", "reference", "explanation", "contributing"):
            page = Path(app.srcdir, "docs", folder, "index.md")
            for group in re.split(r"^#+ ", page.read_text() if page.is_file() else "", flags=re.M)[1:]:
                links = re.findall(r"^- \[(.*?)\]\((.*?)\.md\)", group, flags=re.M)
                if links:
                    entries = "\n".join(f"{title} <{normpath(f'/docs/{folder}/{name}')}>" for title, name in links)
                    source[0] += toctree(group.partition("\n")[0], entries)
    elif docname == "results/README":
        results = Path(app.srcdir, "results")
        pages = sorted(page.relative_to(results) for page in results.glob("*/*.md"))
        source[0] += "\n" + "\n".join(
            f"- [{page.parent}{'' if page.stem == 'README' else ', ' + page.stem}]({page})" for page in pages
        )
    elif docname.startswith(("results/", "docs/reference/generated/")) or docname.endswith("/index") or docname == "README":
        source[0] = f"---\norphan: true\n---\n{source[0]}"  # linked from an index, but not in every page's sidebar


def toctree(caption: str, pages: str) -> str:
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def add_front_door(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_front_door)
