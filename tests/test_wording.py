"""Tests pin facts (a flag, a file, a number, a command), and leave the sentences of messages free to be rewritten."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
# Three or more words of plain English in a row.
PHRASE = re.compile(r"(?<![\w/.=-])[a-z][a-z']*(?: [a-z][a-z']*){2,}")
# The operating system's own sentences, and commands.
FIXED = re.compile(
    "|".join([*sorted({re.escape(os.strerror(number)) for number in range(1, 134)}), r"(paceline|pip|podman) [a-z].*"])
)
CHECKS = {"check_text", "check_line", "check_lines", "has", "raises", "refused"}
METHODS = {"startswith", "endswith", "count"}
# Sentences that are still pinned, by file. A number may only become smaller.
PINNED = {
    "tools/test_bench_step.py": 1,
    "cli/test_launch.py": 1,
    "cli/test_pickled_weights.py": 1,
    "cli/test_warmed_runs.py": 1,
    "data/test_check_classes.py": 1,
    "training/test_live_line.py": 1,
    "distributed/test_oom.py": 1,
    "launch/test_transport.py": 1,
    "multi/test_evaluation_ranks.py": 2,
    "multi/test_ranks_disagree.py": 1,
    "multi/test_scoring_beside.py": 2,
    "multi/test_strangers.py": 2,
    "multi/test_two_hosts.py": 1,
    "multi/test_world.py": 2,
    "tools/test_detection_results.py": 1,
    "tools/test_report_page.py": 1,
    "distributed/test_gloo_lines.py": 1,
    "scripts/test_certificates.py": 1,
    "simulated/test_planted.py": 1,
    "test_suite.py": 1,
}


def pinned(source: str) -> list[str]:
    """Return the literals with a phrase that assertions on text hold."""
    tree = ast.parse(source)
    found = dict.fromkeys(node for root in _checked(tree) for node in ast.walk(root) if isinstance(node, ast.Constant))
    texts = [node.value for node in found if isinstance(node.value, str)]
    return [text for text in texts if PHRASE.search(FIXED.sub("", text))]


def _checked(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what is looked for in a text: `match=`, the left side of `in`, and arguments of the helpers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value
        elif isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.In | ast.NotIn):
                    yield part.left
                elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in METHODS:
                    yield from part.args
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CHECKS:
                yield from node.args


def test_no_more_sentences_are_pinned_than_were():
    files = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("*.py")}
    counts = {name: pinned(text) for name, text in sorted(files.items())}
    more = {name: texts for name, texts in counts.items() if len(texts) > PINNED.get(name, 0)}
    assert not more, f"pin a flag, a file, a number or a command with tests/messages.py instead: {more}"
    fewer = {name: len(counts.get(name, [])) for name, most in PINNED.items() if len(counts.get(name, [])) < most}
    assert not fewer, f"lower these numbers in {Path(__file__).name}: {fewer}"
