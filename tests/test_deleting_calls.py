"""Every call of the package that deletes, renames or cuts a file, or writes one in place, has its reason here.

Each could take a file that paceline did not write, or follow a link out of the folder that is meant. A new one fails here until
somebody has asked both, and prefers _utils/atomic_write.py (files that appear whole, and files among the user's).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sources import nodes_of

import paceline

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
PACKAGE = Path(paceline.__file__).parent
CHANGES = set(
    ["rmtree", "unlink", "rmdir", "rename", "ftruncate", "truncate", "write_text", "write_bytes", "copyfile", "save_file"]
)

# file: (calls, why they touch nothing of anybody else's)
REASONS = {
    "training/checkpoint/background.py": (4, "links and parts in RUN/checkpoints, by names with a token"),
    "training/checkpoint/layout.py": (3, "a probe of a random name, made exclusively; and a killed one's link, which leads nowhere"),
    "training/checkpoint/write.py": (7, "step-N of this run's checkpoints, its parts and trash, by exact name; links lose themselves"),
    "_utils/journal.py": (6, "journals and locks: a torn last line is cut, no link is followed; callers judge by name whose it is"),
    "_utils/atomic_write.py": (8, "parts: drawn names made exclusively; swept by name and kind where nobody holds them, no link"),
    "inference/export/verification.py": (1, "a file that was made in a folder of its own, into a part of _utils/atomic_write.py"),
    "inference/export/onnx_export.py": (1, "a file of its own in that folder"),
    "inference/export/openvino_export.py": (1, "the same: the numbers beside the graph"),
    "data/storage/object_store.py": (1, "a new file, made exclusively, for whoever brings"),
    "data/storage/cache.py": (5, "memory files of this process; in the cache folder, keys that are digests"),
    "data/transforms/decode.py": (1, "/dev/null"),
    "data/index/index.py": (4, "index/HASH and its part, under a drawn name"),
    "data/storage/staged_copy.py": (
        6,
        "a folder that this user's staging made (owner, mode 0700), names that lead nowhere else, no links; names of the ledger "
        "below the folder after links are followed; empty folders",
    ),
    "distributed/comm/gloo.py": (1, "the null device"),
    "distributed/comm/messages.py": (4, ".secret-DIGEST made exclusively without following, and a temporary folder made for it"),
    "launch/doctor/multi_node.py": (2, "a file with a drawn name"),
    "data/download/data_sets.py": (1, "an archive that this command brought"),
    "data/download/fetch.py": (2, "descriptors of Part"),
    "data/download/part.py": (9, "NAME.part with its journal, none but ours; no link followed; folders that it made, if empty"),
    "data/download/unpack.py": (2, "a folder part of _utils/atomic_write.py; files move only where nothing or the same file is"),
    "launch/runner.py": (2, "RUN/launch beside a script of ours; parts of whole"),
    "launch/schedulers/hostfile.py": (2, "a file with a drawn name"),
    "launch/schedulers/local.py": (1, "RUN/launch/output.txt, appended to"),
    "training/logging/stdout_guard.py": (3, "/dev/null, and descriptors 1 and 2"),
    "tools/mlperf/compliance.py": (1, "into a temporary folder"),
    "models/weights/download.py": (3, "parts of whole; a zip that this command itself brought, once its member is unpacked"),
    "models/weights/formats/table.py": (2, "parts of whole, for an --output that is not there"),
    "training/run_dir/remote.py": (1, "a part of step-N with a drawn name, moved to where no checkpoint is any more"),
    "data/pack/pack.py": (1, "the manifest that prepare wrote just now, of files that are not what was packed"),
    "data/pack/write.py": (1, "parts of whole"),
    "inference/video.py": (1, "the .part of a video among the answers, which has named it as its own"),
    "inference/outputs/prediction_dir.py": (
        7,
        "what an earlier prediction lists as its own, in a folder that holds nothing else; no links entered",
    ),
    "data/containers/split_files.py": (1, "a part of whole, in the cache folder"),
    "data/formats/devkit.py": (1, "--devkit asks to sort val/; nothing is replaced"),
    "data/prepare/pipeline.py": (
        5,
        "unreadable.txt with our mark; the journal in the cache folder, under a digest of the data's path; index/HASH and its parts: "
        "by name, by holding arrays alone, never through a link",
    ),
    "data/shapes/render.py": (2, "a folder with a drawn name; its place only where nothing or an empty folder is"),
    "training/run_dir/folder.py": (6, "a run's folder, held by its lock, never followed or cut: what a start that failed made there"),
    "data/workers/jobs.py": (1, "memory without a name, of this process and its workers"),
    "data/workers/template.py": (1, "/dev/null"),
    "training/loop.py": (1, "RUN/STOP, which asks for what was done"),
}  # fmt: skip


def calls(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The calls that change the file system, in words. `str.replace` is none, and `save` goes to buffers or parts."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        given = [ast.unparse(value) for value in (*node.args, *(keyword.value for keyword in node.keywords))]
        if name in CHANGES or called in ("os.replace", "os.remove", "shutil.move"):
            yield called
        elif called == "os.open":
            if re.search("O_CREAT|O_WRONLY|O_RDWR|O_TRUNC", " ".join(given)):
                yield called
        elif name == "open" and any(re.fullmatch(r"'[rb]*[wax+][wbx+]*'", value) for value in given):
            yield called


def test_every_call_that_deletes_or_overwrites_has_a_reason():
    found = {path.relative_to(PACKAGE).as_posix(): list(calls(nodes_of(path))) for path in PACKAGE.rglob("*.py")}
    found = {name: Counter(each) for name, each in found.items() if each}
    assert {
        name: (each.total(), dict(each)) for name, each in found.items() if each.total() != REASONS.get(name, (0,))[0]
    } == {}
    assert set(REASONS) == set(found)


def test_the_wall_sees_every_way():
    source = (
        "import os\nshutil.rmtree(a)\na.unlink()\nos.replace(a, b)\nopen(a, 'wb')\na.open('r+')\nos.open(a, os.O_RDWR)\n"
    )
    assert len(list(calls(ast.walk(ast.parse(source))))) == 6
    harmless = "'a'.replace('b', 'c')\nopen(a)\nopen(a, 'rb')\nos.open(a, os.O_RDONLY)\n"
    assert not list(calls(ast.walk(ast.parse(harmless))))
