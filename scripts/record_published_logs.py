"""What the published runs logged of their hyper-parameters -> tests/config/logged.json, the oracle of recipes and rows.

    python scripts/record_published_logs.py ROUND=GIT_DIRECTORY ... > tests/config/logged.json
    e.g. v0.7=training_results_v0.7/.git v1.1=training_results_v1.1/.git v3.0=training_results_v3.0/.git

Reads the first result of each system from clones of github.com/mlcommons/training_results_vN (Apache-2.0; recorded at 0a8a85a,
ebe92f8 and 63e326c). Only numbers are kept: no text of the logs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import PurePosixPath

RESULT = re.compile(r"[^/]+/results/[^/]+/(ssd|resnet|maskrcnn)/result_[01]\.txt")
# SSD of v1.1 and before is the network with ResNet-34; of later rounds it is RetinaNet.
ROUNDS = {"v0.7": {"ssd"}, "v1.1": {"ssd"}, "v3.0": {"resnet", "maskrcnn"}}
KEYS = re.compile(r"(lars_)?opt_\w+|sgd_opt_\w+|global_batch_size|model_bn_span|num_image_candidates|max_samples")


def git(folder: str, *words: str) -> str:
    """What git prints about a clone; "" for a file that the clone lists and lacks."""
    found = subprocess.run(["git", "-C", folder, *words], capture_output=True, check=words[0] != "show")
    return found.stdout.decode("utf-8", "replace")


def facts_of(log: str) -> dict[str, object]:
    """Hyper-parameters by key, and the first two epochs that were evaluated."""
    found: dict[str, object] = {}
    evaluated: list[int] = []
    for line in log.splitlines():
        _, mark, text = line.partition(":::MLLOG ")
        try:
            event = json.loads(text) if mark else {}
        except ValueError:  # cut off, or two ranks' lines in one
            continue
        key = event.get("key", "")
        if key == "eval_accuracy" and len(evaluated) < 2:
            evaluated.append(event["metadata"].get("epoch_num"))
        elif KEYS.fullmatch(key) and not key.startswith("sgd_opt") and isinstance(event["value"], int | float | list):
            found[key] = event["value"]
    return found | {"evaluated": evaluated} if found else {}


def main(arguments: list[str]) -> None:
    """Print the JSON of all rounds."""
    table: dict[str, dict[str, object]] = {}
    for argument in arguments:
        name, _, folder = argument.partition("=")
        for path in sorted(filter(RESULT.fullmatch, git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines())):
            submitter, _, system, benchmark, _ = PurePosixPath(path).parts
            key = f"{name} {submitter} {system} {benchmark}"
            if benchmark in ROUNDS[name] and key not in table and (found := facts_of(git(folder, "show", f"HEAD:{path}"))):
                table[key] = found
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(table[key], sort_keys=True)}" for key in sorted(table))
    print("{\n" + rows + "\n}")


if __name__ == "__main__":
    main(sys.argv[1:])
