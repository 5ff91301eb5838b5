"""The systems that lines are translated from, by their names for --system-of."""

from __future__ import annotations

from paceline.migrate import mxnet_ssd
from paceline.migrate.table import Original

ORIGINALS: dict[str, Original] = {one.name: one for one in (mxnet_ssd.ORIGINAL,)}
