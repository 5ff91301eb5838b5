"""The systems that lines are translated from; of two whose program knows all flags of a line the first is taken."""

from __future__ import annotations

from paceline.migrate import mxnet_ssd
from paceline.migrate.table import Original

ORIGINALS: tuple[Original, ...] = (mxnet_ssd.ORIGINAL,)
