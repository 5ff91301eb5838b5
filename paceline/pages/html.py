"""Self-contained pages from templates: one frame and style (frame.html.jinja) for the report and the check page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined


def templates(folder: Path, own: Mapping[str, str] | None = None) -> Environment:
    """The templates of a folder, which may extend the frame.

    own  templates from elsewhere: name -> text
    """
    # Everything is escaped: class names and paths come from other people's folders.
    return Environment(
        loader=ChoiceLoader([DictLoader(own or {}), FileSystemLoader([folder, Path(__file__).parent])]),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
