"""What a reader sees of an HTML page of ours, and that the page is whole: tags balanced, ids unique, nothing fetched."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

from PIL import Image

VOID = ("meta", "img", "br", "link", "input")


class Page(HTMLParser):
    """A page's tags with their attributes, and its texts outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.pieces: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        if self._open[-1:] not in (["script"], ["style"]) and data.strip():
            self.pieces.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        """All texts, with a bar after each."""
        return "".join(piece + " | " for piece in self.pieces)

    @property
    def words(self) -> str:
        """All texts, joined."""
        return " ".join(self.pieces)

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """The attributes of each such tag; `class_="x"` stands for class="x"."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [given for name, given in self.tags if name == tag and wanted.items() <= given.items()]

    @property
    def pictures(self) -> list[str]:
        """The source of each picture."""
        return [attributes["src"] for attributes in self.all("img")]

    @property
    def charts(self) -> list[str]:
        """The title of each drawn chart."""
        return [attributes["aria-label"] for attributes in self.all("svg") if "aria-hidden" not in attributes]


def read_page(html: str) -> Page:
    """The page, which holds everything that it shows and is no larger than a mail takes."""
    page = Page(html)
    for _, given in page.tags:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert given.get(name, "#").startswith(("data:", "#")), given
    assert "@import" not in html and re.findall(r"url\((?!#)", html) == []
    ids = [given["id"] for _, given in page.tags if "id" in given]
    assert len(ids) == len(set(ids))
    assert len(html) < 5_000_000
    return page


def picture_in(uri: str) -> Image.Image:
    """The picture of a data URI."""
    kind, _, content = uri.partition(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))
