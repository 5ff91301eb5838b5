"""A reporter that keeps what it receives, for tests."""

from __future__ import annotations

from paceline._utils.reporter import Reporter


class Recording(Reporter):
    """Messages in `lines`, steps of progress in `steps` as (what, done, total)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[str, int, int]] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))
