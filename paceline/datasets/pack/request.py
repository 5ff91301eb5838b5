"""What `pack` is asked for, and the sizes that people write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from paceline.config.errors import UserError
from paceline.config.printable import short

Form = Literal["webdataset", "recordio", "tfrecord"]
Order = Literal["kept", "shuffled"]

FORMS: tuple[Form, ...] = ("webdataset", "recordio", "tfrecord")
# Of photos that are made smaller and no quality was named.
USUAL_QUALITY = 90
USUAL_SHARD = 1 << 30
# Smaller photos than this are of no use to any network here.
LEAST_SHORT, MOST_SHORT = 16, 1 << 16

_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class PackRequest:
    """What to write. What is not asked for leaves the photos' bytes alone."""

    to: Form = "webdataset"
    order: Order = "kept"
    seed: int = 0  # of the shuffled order
    short: int = 0  # pixels of the shorter side of photos whose shorter side is longer; 0: sizes are kept
    quality: int = 0  # of JPEGs that are written anew, 1 to 100; without `short`, of every photo; 0: USUAL_QUALITY
    shards: int = 0  # files of the training split; 0: as many as `shard_bytes` makes
    shard_bytes: int = 0  # about so many a file; 0: USUAL_SHARD, or one file a split for recordio

    @property
    def encodes(self) -> bool:
        """Whether photos may be written anew."""
        return bool(self.short or self.quality)

    @property
    def jpeg_quality(self) -> int:
        return self.quality or USUAL_QUALITY


def check_request(request: PackRequest) -> None:
    """Raises UserError, naming the flag, for what cannot be."""
    if request.to not in FORMS:
        raise UserError(f"--to {short(request.to)}: there is no such form. Known: {', '.join(FORMS)}.")
    if request.quality and not 1 <= request.quality <= 100:
        raise UserError(f"--quality {request.quality}: JPEG's quality is a number from 1 to 100; 90 is usual.")
    if request.short and not LEAST_SHORT <= request.short <= MOST_SHORT:
        raise UserError(
            f"--short {request.short}: the shorter side in pixels, {LEAST_SHORT} to {MOST_SHORT:,}; 256 is usual for ImageNet."
        )
    if request.shards and request.shard_bytes:
        raise UserError("--shards and --shard-size: each says how the data is cut. Name one of them.")
    if request.shards < 0:
        raise UserError(f"--shards {request.shards}: a number of files, 1 or more.")


def parse_bytes(text: str, flag: str) -> int:
    """'1GiB' -> 1073741824, '500MB' -> 500000000; "" -> 0. Raises UserError."""
    if not text:
        return 0
    match = _SIZE.fullmatch(text.strip())
    number = 0 if match is None else int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])
    if number < 1:
        raise UserError(f"{flag} {short(text)}: no size. Write it as 1GiB, 500MB or 1000000.")
    return number
