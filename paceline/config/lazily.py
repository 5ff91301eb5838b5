"""A function named by its place, so that a menu may list what it does not import."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def lazily(where: str) -> Callable[..., Any]:
    """The function after the colon of the module before it, as "paceline.tasks.ssd:build_detector"; imported when called."""
    module, _, name = where.partition(":")

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **named)

    call.__qualname__ = where
    return call
