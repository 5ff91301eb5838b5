"""Why a test waits for the night: `@pytest.mark.nightly("reason")`, or this mark on one parameter of several."""

from __future__ import annotations

import pytest

ONE_MORE = pytest.mark.nightly("one more case; others of the same test run by day")
