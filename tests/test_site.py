"""The site builds without a warning, a dead link is one, and its pages take nothing from another server."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from browser import browser

ROOT = Path(__file__).parents[1]
COMMAND = ".venv/bin/python -m sphinx -EWnq -c docs . build/site"
# What a browser fetches by itself.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}


def built(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """The stated command, with the same configuration, on `source` and into `out`."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    words = COMMAND.replace(" docs ", f" {ROOT / 'docs'} ").replace(" . ", f" {source} ").split()[1:-1]
    return subprocess.run([sys.executable, *words, str(out)], capture_output=True, text=True, cwd=ROOT)


def test_the_command_of_the_site_is_stated_and_run_with_the_suite():
    assert COMMAND in (ROOT / "CONTRIBUTING.md").read_text()
    assert COMMAND in (ROOT / "scripts" / "test.sh").read_text()


@pytest.mark.nightly("all pages; scripts/test.sh builds them by day too")
def test_all_pages_become_a_site_that_takes_nothing_from_elsewhere(tmp_path_factory, need_program):
    tmp_path = tmp_path_factory.mktemp("site")
    site = built(ROOT, tmp_path)
    assert (site.returncode, site.stdout + site.stderr) == (0, "")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 90 and (tmp_path / "searchindex.js").stat().st_size > 100_000
    for page in pages:
        assert not [one for one in fetched(page.read_text()) if re.match(r"\w+:|//", one)], page
    assert "score-threshold" in (tmp_path / "docs/reference/generated/cli/predict.html").read_text()
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", style.read_text()), style
    shown_without_an_error(tmp_path, need_program("chromium", "chromium"), tmp_path_factory.mktemp("profile"))


def shown_without_an_error(site: Path, chromium: str, profile: Path) -> None:
    """Pages of each kind in a browser, as wide as a desk's and as a phone's; and the search, from the site alone."""
    (site / "favicon.ico").touch()  # which a browser may ask for, and miss
    handler = partial(Silent, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, browser(chromium, profile) as page:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for name in (
            "",
            "docs/how-to/train-on-your-own-images.html",
            "docs/reference/generated/cli/predict.html",
            "docs/reference/generated/recipes/ssd.html",
        ):
            for width in (1280, 390):
                page.open(f"{address}/{name}", width=width, height=900)
                page.wait("document.readyState == 'complete' && !!document.querySelector('h1')")
                assert page.eval("document.documentElement.scrollWidth") <= width, (name, width)
        page.open(f"{address}/search.html?q=out+of+memory")
        page.wait("document.querySelectorAll('#search-results li').length > 3")
        found = page.eval("[...document.querySelectorAll('#search-results li a')].map(one => one.innerText)")
        page.open(f"{address}/search.html?q=yolo")  # on results too, which come last (docs/theme/search.js)
        page.wait("document.querySelectorAll('#search-results li').length > 10")
        first = page.eval("[...document.querySelectorAll('#search-results li a')].map(one => one.innerText)")[:5]
        server.shutdown()
        assert "Out of memory" in found[:3] and "Dataset formats" in first and not page.errors


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: object) -> None: ...


@pytest.mark.nightly("starts Sphinx four times")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[data](tutorials/data.md)", ""),
        ("[data](tutorials/dota.md)", "dota.md"),
        ("[data](tutorials/data.md#colums)", "colums"),
        ("[code](../paceline/lop.py)", "lop.py"),
    ],
    ids=["alive", "page", "heading", "file"],
)
def test_a_dead_link_fails(text, said, tmp_path):
    (tmp_path / "docs" / "tutorials").mkdir(parents=True)
    (tmp_path / "docs" / "tutorials" / "data.md").write_text("# Data\n\n## Columns\n")
    (tmp_path / "docs" / "tutorials" / "index.md").write_text("# Some\n\n- [Data](data.md)\n")
    (tmp_path / "docs" / "index.md").write_text(f"# All\n\n{text}\n")
    site = built(tmp_path, tmp_path / "out")
    assert site.returncode == (1 if said else 0), site
    assert said in site.stderr


def fetched(text: str) -> list[str]:
    """The addresses that a browser asks for when it shows a page."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = dict(attrs)
            if tag in FETCHED and values.get("rel") not in ("index", "search", "next", "prev", "canonical"):
                found.append(values.get(FETCHED[tag]) or "")

    Reader().feed(text)
    return found
