"""Check texts against docs/contributing/style.md, by the rules in scripts/style.yml.

    .venv/bin/python scripts/style.py docs/faq.md       print each finding, and what to write instead
    .venv/bin/python scripts/style.py                   print the counts, and where they differ from tests/style_allowed.json
    .venv/bin/python scripts/style.py --write-allowed   lower the counts in tests/style_allowed.json to what is left; none rises
    .venv/bin/python scripts/style.py --commits         check the subjects of the commits that origin/main does not have

Three areas are checked: docs (README.md, CONTRIBUTING.md, and the pages of docs/ that no script writes), help (`Help("...")`), and
messages (all other strings of the package that read as prose). Code in backticks, a flag, and a path count as one word.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = "tests/style_allowed.json"
GENERATED = "docs/reference/generated/"
MAX_WORDS, MAX_HELP, MAX_SUBJECT = 30, 90, 72
# In a passage: a code span, a flag, or a path; the start of a heading; the ends of bold text; the ends of a link.
CODE, HEADING, BOLD, LINK, END = "Q", "\ue000", "\ue001", "\ue002", "\ue003"
MARKERS = str.maketrans("", "", LINK + END)
TABLE = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
PARTS, WORDS, SPELLING, ISE = (TABLE[name] for name in ("parts", "words", "spelling", "ise"))
NAME = re.compile(r"(?<![\w-])--?[a-z][\w-]*(?:\.[\w-]+)*|[^\s(\"']*[/_~][^\s)\"']*[^\s).,;:\"']")
SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)(?<=[.!?])[\")\]\ue003]*\s+(?=[A-Z0-9(\ue002])|\s{2,}")
PROSE = re.compile(r"[a-z][a-z']*,? [a-z][a-z']*,? [a-z][a-z']*")
# Scripts and programs in other languages are not prose.
PROGRAM = re.compile(r"\$\(|; then|\{\n")
# Both are for lowercase text.
WORD = re.compile(rf"\b(?:{'|'.join(f'({pattern})' for pattern in WORDS)})\b".replace(" ", r"\s+"))
BRITISH = re.compile(rf"(?:{'|'.join(SPELLING)})\w*|(?:{ISE})is(?:e|ed|es|er|ers|ing|ation|ations)\b")
NO_TEXT = (ast.Name, ast.expr_context, ast.operator, ast.cmpop, ast.alias)


Counts = dict[str, dict[str, int]]  # by file and rule
# Kind (docs, table, help, or messages), the line on which it starts, and the text.
Passage = tuple[str, int, str]


class Finding(NamedTuple):
    """A place in a file that a rule forbids."""

    file: str
    line: int
    area: str
    rule: str
    words: str
    instead: str


def rules() -> Iterator[tuple[str, str, bool, re.Pattern[str], re.Pattern[str], str]]:
    """Yield name, kinds, whether case matters, the pattern, what must not be before it, and what to write instead.

    Without re.I a search takes a fifth of the time, so a pattern without regard to case is for lowercase text.
    """
    for name, rule in TABLE["rules"].items():
        for row in rule.get("patterns", []):
            patterns = [row["find"].replace(" ", r"\s+"), row.get("before", "(?!)").replace(" ", r"\s+")]
            for part, pattern in [*PARTS.items()] * 2:  # a part may have other parts in it
                patterns = [text.replace(f"{{{part}}}", pattern.replace(" ", r"\s+")) for text in patterns]
            cased = "(?-i:" in patterns[0]
            find, before = (re.compile(text, re.I) if cased else re.compile(text.replace(CODE, "q")) for text in patterns)
            yield name, rule.get("in", "docs table help messages"), cased, find, before, row["instead"]


RULES = list(rules())


def passages_of_page(text: str) -> Iterator[Passage]:
    """Yield the passages of a Markdown page; of a block of code, its comments."""
    marks = {"softbreak": "\n", "strong_open": BOLD, "strong_close": BOLD, "link_open": LINK, "link_close": END}
    opened = ""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        line = (token.map or [0])[0] + 1
        if token.type == "inline":
            parts = [HEADING if opened == "heading_open" else ""]
            for child in token.children or []:
                code = CODE + "\n" * child.content.count("\n") if child.type == "code_inline" else child.content
                parts.append(
                    marks.get(child.type.replace("hard", "soft"), code if child.type in ("code_inline", "text") else "")
                )
            yield "table" if opened in ("th_open", "td_open") else "docs", line, "".join(parts)
        elif token.type in ("fence", "code_block"):
            for number, code in enumerate(token.content.splitlines(), line + (token.type == "fence")):
                if comment := re.search(r"(?:^|\s)# (.*)", code):
                    yield "table", number, comment[1]
        opened = token.type


def passages_of_module(text: str) -> Iterator[Passage]:
    """Yield the help texts of a module, and its other strings of prose: no docstrings, no patterns."""
    nodes: list[Any] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        called = node.func if isinstance(node, ast.Call) else None
        string, kind = None, "messages"
        if isinstance(node, ast.Constant):
            string = node.value
        elif isinstance(node, ast.JoinedStr):
            string = "".join(str(part.value) if isinstance(part, ast.Constant) else CODE for part in node.values)
            nodes += [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        elif isinstance(called, ast.Name) and called.id == "Help":
            string, kind = ast.literal_eval(node.args[0]), "help"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        elif not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "re"):
            nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, NO_TEXT)]
        if isinstance(string, str) and (kind == "help" or (PROSE.search(string) and not PROGRAM.search(string))):
            yield kind, node.lineno, string


def find_in(file: str, passages: Iterable[Passage]) -> Iterator[Finding]:
    """Yield what the rules find in the passages of a file."""
    for kind, line, text in passages:
        linked = NAME.sub(CODE, text)
        text = linked.translate(MARKERS)
        lower = text.lower()
        found: dict[tuple[str, int], tuple[int, str]] = {}
        for name, kinds, cased, find, before, instead in RULES:
            searched = text if cased else lower
            for match in find.finditer(searched) if kind in kinds else ():
                if not before.search(searched, max(0, match.start() - 60), match.start()):
                    found.setdefault((name, match.start()), (match.end(), instead))
        for match in WORD.finditer(lower):
            found["word", match.start()] = match.end(), list(WORDS.values())[(match.lastindex or 0) - 1]
        for match in BRITISH.finditer(lower):
            found["spelling", match.start()] = match.end(), american(match[0])
        if kind == "help" and len(text) > MAX_HELP:
            found["help-length", 0] = len(text), f"at most {MAX_HELP} characters, not {len(text)}"
        for sentence in SENTENCE.split(linked):
            count = sum(bool(re.search(r"\w", word)) for word in re.sub(f"{LINK}[^{END}]*{END}", CODE, sentence).split())
            if count > MAX_WORDS:
                start = text.index(sentence.translate(MARKERS))
                found["long-sentence", start] = start + len(sentence), f"at most {MAX_WORDS} words, not {count}"
        for (rule, start), (end, instead) in sorted(found.items()):
            words = f"{text[max(0, start - 20) : start]}[{text[start : min(end, start + 60)]}]{text[end : end + 20]}"
            area = kind.replace("table", "docs")
            yield Finding(file, line + text.count("\n", 0, start), area, rule, " ".join(words.split()), instead)


def american(word: str) -> str:
    """Return the US spelling of a British word."""
    for british, us in SPELLING.items():
        word = word.replace(british, us)
    return re.sub(rf"({ISE})is(e|ed|es|er|ers|ing|ation|ations)$", r"\1iz\2", word)


def check(file: Path) -> list[Finding]:
    """Return the findings in a page or module, in the order of its lines."""
    passages = passages_of_module if file.suffix == ".py" else passages_of_page
    return sorted(find_in(file.relative_to(ROOT).as_posix(), passages(file.read_text())), key=lambda finding: finding.line)


def check_all() -> dict[str, list[Finding]]:
    """Return the findings in all pages and modules, by file."""
    patterns = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "paceline/**/*.py")
    files = {file.relative_to(ROOT).as_posix(): file for pattern in patterns for file in ROOT.glob(pattern)}
    return {name: check(file) for name, file in files.items() if not name.startswith(GENERATED)}


def count(findings: dict[str, list[Finding]]) -> Counts:
    """Return the number of findings by file and rule; a file without any has none."""
    return {file: dict(Counter(finding.rule for finding in results)) for file, results in findings.items()}


def differences(found: Counts, file: Path) -> list[str]:
    """Return a line for each count that is above or below the allowed one."""
    allowed = json.loads(file.read_text())
    pairs = {(file, rule) for counts in (found, allowed) for file, rules in counts.items() for rule in rules}
    both = [
        (file, rule, found.get(file, {}).get(rule, 0), allowed.get(file, {}).get(rule, 0)) for file, rule in sorted(pairs)
    ]
    return [f"{file}: {rule}: {now}, and {most} are allowed" for file, rule, now, most in both if now != most]


def refused(found: Counts, allowed: Counts) -> list[str]:
    """Return the counts that would rise. A new file may have what the others lose: modules are renamed and split."""
    now, most = (sum(map(Counter, counts.values()), Counter[str]()) for counts in (found, allowed))
    rises = [f"{file}: {rule}" for file in allowed for rule in Counter(found.get(file, {})) - Counter(allowed[file])]
    return [f"{rise}: a count must not rise" for rise in (*rises, *(f"all files: {rule}" for rule in now - most))]


def write_allowed(found: Counts, file: Path) -> list[str]:
    """Write the counts as the allowed ones, one line per file. If a count would rise, return which, and write nothing."""
    lines = refused(found, json.loads(file.read_text())) if file.exists() else []
    if not lines:
        rows = [f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in sorted(found)]
        file.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return lines


def long_subjects(root: Path = ROOT) -> list[str]:
    """Return the too long subjects of commits that origin/main lacks and that came after this check.

    Without origin/main, return that of the last commit. Merges do not count.
    """

    def git(*words: str) -> list[str]:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True).stdout.splitlines()

    known = git("rev-parse", "--verify", "--quiet", "origin/main")
    added = git("log", "--diff-filter=A", "--format=%H", "--", "scripts/style.py")[-1:]
    if not added:
        return []
    limits = ["--not", "origin/main"] if known else ["--max-count=1", "--not"]
    commits = git("log", "--no-merges", "--format=%h %s", "HEAD", *limits, *added)
    return [commit for commit in commits if len(commit.partition(" ")[2]) > MAX_SUBJECT]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="print the findings in these files")
    parser.add_argument("--write-allowed", action="store_true", help=f"lower the counts in {ALLOWED}; a count never rises")
    parser.add_argument(
        "--commits", action="store_true", help=f"check subjects of commits: at most {MAX_SUBJECT} characters"
    )
    flags = parser.parse_args()
    if flags.commits:
        lines = [f"at most {MAX_SUBJECT} characters in the subject of a commit: {line}" for line in long_subjects()]
    elif flags.files:
        findings = [finding for file in flags.files for finding in check(file.resolve())]
        lines = [f"{one.file}:{one.line}: {one.rule}: {one.words} -> {one.instead}" for one in findings]
    else:
        findings, allowed = check_all(), ROOT / ALLOWED
        areas = Counter((one.rule, one.area) for results in findings.values() for one in results)
        print("".join(f"{rule:14}{area:10}{number:5}\n" for (rule, area), number in sorted(areas.items())))
        compare = write_allowed if flags.write_allowed else differences
        lines = compare(count(findings), allowed)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
