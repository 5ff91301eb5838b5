"""Makes the modules of tests/multi known to the tests of faults."""

from __future__ import annotations

import multi_path  # noqa: F401
