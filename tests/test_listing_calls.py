"""One module lists the folders of users: hidden files and files of operating systems reach no reader (_utils/names.py)."""

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
# The packages that read what users name: photos, annotations, archives, predictions, weights.
READERS = ("cli", "data", "inference", "tools/bench", "tools/compare", "training/run_arguments.py", "models")
LISTS = re.compile(r"\.(glob|iglob|rglob|iterdir|scandir|listdir)$|^(scandir|listdir|iglob)$|^os\.(f?walk)$")
# file: (calls, the folder of our own that they list)
OWN = {
    "cli/commands/launch.py": (1, "the parts of a file of weights that the command line names"),
    "cli/commands/runs.py": (1, "run folders"),
    "cli/commands/compare.py": (1, "predictions of a run"),
    "tools/bench/input_cases.py": (2, "/proc"),
    "cli/commands/data.py": (1, "predictions of a run"),
    "data/pack/pack.py": (1, "--output-dir, which must be empty"),
    "data/shapes/render.py": (1, "--output-dir, which must be empty"),
    "inference/outputs/prediction_dir.py": (3, "--output-dir of a prediction"),
    "data/storage/cache.py": (1, "the cache"),
    "data/workers/template.py": (1, "/proc"),
    "models/ops/torchvision_kernels.py": (1, "torchvision's own folder"),
    "data/download/data_sets.py": (1, "a data set that this command downloaded, whose files are counted"),
    "data/download/unpack.py": (2, "a part of its own"),
    "data/index/index.py": (1, "the folder of an index"),
    "data/prepare/pipeline.py": (3, "the folder of an index"),
    "data/storage/staged_copy.py": (5, "the stage"),
}


def calls(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The calls that list a folder."""
    for node in nodes:
        if isinstance(node, ast.Call) and LISTS.search(ast.unparse(node.func)):
            yield ast.unparse(node.func)


def test_every_reader_lists_folders_through_one_module() -> None:
    files = [
        path for name in READERS for path in ([PACKAGE / name] if name.endswith(".py") else (PACKAGE / name).rglob("*.py"))
    ]
    assert len(files) > 200
    found = {path.relative_to(PACKAGE).as_posix(): list(calls(nodes_of(path))) for path in files}
    counted = {name: Counter(each) for name, each in found.items() if each}
    assert {name: dict(each) for name, each in counted.items() if each.total() != OWN.get(name, (0,))[0]} == {}
    assert set(OWN) == set(counted)


def test_the_search_finds_every_way_to_list_a_folder() -> None:
    ways = "os.scandir(a)\nos.listdir(a)\nos.walk(a)\na.iterdir()\na.glob(b)\na.rglob(b)\nglob.glob(a)\nglob.iglob(a)\nscandir(a)\n"
    assert len(list(calls(ast.walk(ast.parse(ways))))) == 9
    others = "ast.walk(a)\nwalk(a)\nlisted(a)\nglob.escape(a)\n"
    assert not list(calls(ast.walk(ast.parse(others))))
