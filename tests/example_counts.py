"""How many examples a property is tried on: few in the suite, 20 times as many with --nightly."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> settings:
    """`count` examples in the suite; a decorator. The profile is set before test modules are imported (conftest.py)."""
    return settings(max_examples=count * settings.default.max_examples // 100, deadline=None)
