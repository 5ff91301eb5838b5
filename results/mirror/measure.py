"""What --sync-to costs a training: the same run with and without it, by turns; printed as one JSON object.

AWS_ENDPOINT_URL=... AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... python results/mirror/measure.py s3://BUCKET/PREFIX [ROUNDS]
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.training.logging.events import read_events

FLAGS = (
    *("--synthetic", "--global-batch-size", "16", "--optim.lr", "0.01", "--model.depth", "18", "--model.width", "32"),
    *("--input.image-size", "64", "--input.eval-crop-size", "64", "--input.eval-resize-size", "72"),
    *("--max-steps", "240", "--save-every", "40", "--log-every", "40", "--quiet"),
)


def pace(folder: Path, *more: str) -> tuple[float, float, dict]:
    """-> (steps a second from the first train event to the last, the process's CPU-seconds, what the end says of the mirror)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "paceline", "train", "classify-demo", "--output-dir", str(folder), *FLAGS, *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    events = read_events(folder / "events.jsonl")
    trained = [event for event in events if event["event"] == "train"]
    first, last = trained[0], trained[-1]
    return (last["step"] - first["step"]) / (last["seconds"] - first["seconds"]), cpu, events[-1].get("mirror", {})


def main() -> None:
    """Rounds of two runs each, whose order changes."""
    url, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    found = []
    with tempfile.TemporaryDirectory() as root:
        for number in range(rounds):
            took, cpu, mirror = {}, {}, {}
            for mirrored in (number % 2 == 0, number % 2 == 1):
                took[mirrored], cpu[mirrored], told = pace(
                    Path(root) / f"{number}-{mirrored}", *(("--sync-to", f"{url}-{number}") if mirrored else ())
                )
                mirror = mirror or told
            found.append(
                {
                    "with": took[True],
                    "without": took[False],
                    "ratio": took[True] / took[False],
                    "cpu": [cpu[True], cpu[False]],
                    "mirror": mirror,
                }
            )
            print(found[-1], file=sys.stderr)
    ratios = [each["ratio"] for each in found]
    print(
        json.dumps(
            {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "rounds": found}, indent=1
        )
    )


if __name__ == "__main__":
    main()
