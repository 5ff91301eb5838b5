"""Names that several packages share: of photos, with the format behind each; in and of a run's folder; dotted names of settings.

Also the names that are never data, and the listing of folders without them, for every reader of users' data. Hidden names begin with a
dot (`._photo.jpg`, `.ipynb_checkpoints`, `.DS_Store`). The others are those that macOS, Windows, file systems, and network storage
(Synology, QNAP) write into folders of photos. One folder's images are listed as bytes, so that no encoding can lose one.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, AnyStr

from paceline._utils.errors import DataError, PacelineError

_SYSTEM = re.compile(
    r"__macosx|icon\r|(eh)?thumbs\.db|desktop\.ini|\$recycle\.bin|recycler|system volume information|lost\+found|"
    "@eadir|@tmp|#recycle|#snapshot|@recycle|@recently-snapshot",
    re.IGNORECASE,
)


def is_system_name(name: str | bytes) -> bool:
    """True for the name of a hidden file or folder, or of one that an operating system writes."""
    text = os.fsdecode(name)
    return text.startswith(".") or _SYSTEM.fullmatch(text) is not None


def in_system_folder(path: str | bytes) -> bool:
    """True if a part of `path`, its last one included, is a system name. Parts are separated by slashes."""
    return any(is_system_name(part) and part not in (".", "..") for part in os.fsdecode(path).split("/"))


def scan_folder(folder: AnyStr) -> tuple[list[os.DirEntry[AnyStr]], int]:
    """Return the entries of `folder` by name, and the number of system entries left out. Raises OSError."""
    with os.scandir(folder) as entries:
        results = sorted(entries, key=lambda entry: entry.name)
    visible = [entry for entry in results if not is_system_name(entry.name)]
    return visible, len(results) - len(visible)


def list_matching(folder: str | Path, *patterns: str) -> list[Path]:
    """Return the entries of `folder` that match a pattern, sorted; all without patterns, none if it cannot be listed."""
    try:
        names = [entry.name for entry in scan_folder(os.fspath(folder))[0]]
    except OSError:
        return []
    return [Path(folder, name) for name in names if any(fnmatch.fnmatchcase(name, one) for one in patterns or ("*",))]


def walk_visible(folder: str | Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder, its folders and its files from `folder` down, as `os.walk_visible` does, without system entries."""
    for location, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_system_name(name)]
        yield location, folders, [name for name in files if not is_system_name(name)]


def glob_paths(pattern: str, *, recursive: bool = False) -> list[str]:
    """Return the paths that `pattern` matches, sorted, without system entries that it does not name itself."""
    named = set(pattern.split(os.sep))
    results = sorted(glob.iglob(pattern, recursive=recursive))
    return [path for path in results if not any(map(_SYSTEM.fullmatch, {*path.split(os.sep)} - named))]


# Pillow's words. "MPO", a JPEG followed by further ones (stereo, burst, depth), is read as a JPEG.
SUFFIX_FORMATS = {
    b".jpg": "JPEG",
    b".jpeg": "JPEG",
    b".png": "PNG",
    b".ppm": "PPM",
    b".pgm": "PPM",
    b".bmp": "BMP",
    b".tif": "TIFF",
    b".tiff": "TIFF",
    b".webp": "WEBP",
}
# What torchvision's ImageFolder takes for an image, so both find the same files in the same order.
IMAGE_SUFFIXES = frozenset(SUFFIX_FORMATS)
FORMATS = tuple(dict.fromkeys(SUFFIX_FORMATS.values()))
# What answers are given on beside those of data sets. None of these formats is read by another program.
PREDICTED_SUFFIX_FORMATS = {**SUFFIX_FORMATS, b".gif": "GIF", b".avif": "AVIF"}
PREDICTED_FORMATS = tuple(dict.fromkeys(PREDICTED_SUFFIX_FORMATS.values()))


def is_image_name(name: bytes) -> bool:
    """True for a visible name with an image suffix, in either case. `name` is without folders."""
    return not name.startswith(b".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def is_image_path(path: bytes) -> bool:
    """True for a path in an archive with an image's name at its end, unless a part of it is hidden or a system's."""
    return is_image_name(path.rsplit(b"/", 1)[-1]) and not in_system_folder(path)


# Pictures, by a suffix that no reader here takes. A phone writes the first two; some name a JPEG so, or .jfif.
OTHER_PICTURES = frozenset(
    f".{suffix}"
    for suffix in (
        *("heic", "heif", "avif", "gif", "jfif", "jpe", "jp2", "j2k", "jxl", "jxr", "psd", "tga", "ico", "svg", "eps"),
        *("dng", "raw", "cr2", "cr3", "nef", "arw", "raf", "orf", "rw2"),  # of cameras
    )
)
NAMED, LONGEST = 8, 20


def get_suffix(name: bytes) -> str:
    """The suffix of a file's name, as `format_suffixes` counts it."""
    return os.fsdecode(os.path.splitext(name)[1].lower())[:LONGEST]


def format_suffixes(counts: Mapping[str, int]) -> str:
    """What was left out: '7 files: 6 .heic, 1 without suffix; .heic is not read: ...'; "" where nothing was.

    counts  of each suffix, in small letters with its dot, how many files; "" for none
    """
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if not ordered:
        return ""
    named = [f"{count:,} {suffix or 'without suffix'}" for suffix, count in ordered[:NAMED]]
    if more := sum(count for _, count in ordered[NAMED:]):
        named.append(f"{more:,} of other suffixes")
    total = sum(counts.values())
    text = f"{total:,} file{'' if total == 1 else 's'}: {', '.join(named)}"
    pictures = [suffix for suffix, _ in ordered if suffix in OTHER_PICTURES]
    if not pictures:
        return text
    are = "is" if len(pictures) == 1 else "are"
    return f"{text}; {', '.join(pictures)} {are} not supported: convert these files to JPEG, or rename JPEG files to .jpg"


# Where runs lie whose folder nobody named, and up to which number they are tried.
RUNS, MAX_RUNS = "runs", 9999
# A file of this name in the run's folder stops the run, where a signal cannot reach it.
STOP_FILE = "STOP"
# The files of `paceline launch`, and what all ranks print.
LAUNCH_FOLDER = "launch"
# Whose a run is, here and in the bucket that it is mirrored to (training/run_dir/remote.py).
MIRROR_FILE = "mirror.json"
# What a start that failed or was killed, or one that is about to come, leaves in a folder before there is a run.json.
LEFT_OVER = re.compile(rf"{LAUNCH_FOLDER}|\.lock|\.probe.*|\.(run|mirror)\.json\..*part|\.secret-.*|{MIRROR_FILE}")


def next_numbered_folder(name: str) -> Path:
    """The first of runs/NAME-001, -002, ... that is not there.

    Raises PacelineError where all are.
    """
    stem = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in Path(name).name)
    for number in range(1, MAX_RUNS + 1):
        path = Path(RUNS).absolute() / f"{stem}-{number:03d}"
        if not path.exists():
            return path
    raise PacelineError(f"{RUNS}/{stem}-001 to {MAX_RUNS} all exist. Remove some, or set --output-dir.")


# What may lie in a run's folder before anything is written there: plain files and folders, each under a name of its kind. The folder
# may come from somebody else, and what is written and removed under its names would follow a link to another place. The folder itself
# may be reached through one: `--output-dir` is the user's own.
CHECKPOINTS, PREDICTIONS, TENSORBOARD, PROFILE = "checkpoints", "predictions", "tensorboard", "profile"
FOLDERS = (CHECKPOINTS, PREDICTIONS, TENSORBOARD, PROFILE, LAUNCH_FOLDER)
FILES = ("run.json", "run-first.json", "events.jsonl", "mllog.txt", "report.html", MIRROR_FILE, ".lock")
# The links that a run's folder has, to checkpoints beside them, and what a kill leaves of them (training/checkpoint/layout.py).
# One that leads to the other, or to itself, is damaged and leads nowhere else.
_OWN_LINK, _BESIDE = re.compile(r"last|best|\.(last|best)\.[0-9a-f]+\.part"), re.compile(r"step-\d+|last|best")
_PROBE, NOWHERE = re.compile(r"\.probe\.[0-9a-f]+\.part"), "nowhere"


def check_entries(run: Path) -> None:
    """Raises PacelineError naming an entry of the folder `run`, or of a folder in it that is written to, that is a link, a pipe or the
    like, or a file where a folder belongs. A folder that is not there has none."""
    for entry in _listed(run):
        inside = entry.name in FOLDERS
        if _PROBE.fullmatch(entry.name) and entry.is_symlink() and os.readlink(entry.path) == NOWHERE:
            continue
        if wrong := _wrong(entry, must_be="folder" if inside else "file" if entry.name in FILES else ""):
            raise _refusal(entry.path, wrong)
        for inner in _listed(Path(entry.path)) if inside else ():
            own = entry.name == CHECKPOINTS and _OWN_LINK.fullmatch(inner.name) and inner.is_symlink()
            if own and _BESIDE.fullmatch(os.readlink(inner.path)):
                continue
            if wrong := _wrong(inner):
                raise _refusal(inner.path, wrong)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # not there yet, or for whoever writes to it to complain of
        return []


def _wrong(entry: os.DirEntry[str], *, must_be: str = "") -> str:
    """What an entry is, where that is wrong; must_be: "folder", "file" or "" for either."""
    if entry.is_symlink():
        return "a symbolic link, which a run must not follow"
    folder, file = entry.is_dir(), entry.is_file()
    if not folder and not file:
        return "neither a file nor a folder"
    result = "folder" if folder else "file"
    return f"a {result}, but must be a {must_be}" if must_be not in ("", result) else ""


def _refusal(path: str, wrong: str) -> PacelineError:
    return PacelineError(f"{path}: is {wrong}. Remove it, or choose another folder with --output-dir.")


def flatten(node: Any, above: str = "") -> dict[str, Any]:
    """The values of nested mappings and dataclasses by their dotted names: {"optim.lr": 0.1}. An empty mapping is a value."""
    items = node if isinstance(node, Mapping) else {entry.name: getattr(node, entry.name) for entry in fields(node)}
    result: dict[str, Any] = {}
    for name, value in items.items():
        nested = is_dataclass(value) or (isinstance(value, Mapping) and value)
        result |= flatten(value, f"{above}{name}.") if nested else {f"{above}{name}": value}
    return result


@dataclass(frozen=True)
class FolderNames:
    """Names in one folder, each list in byte order (= ImageFolder's order); hidden entries count as ignored."""

    images: list[bytes]  # with an image suffix (.jpg, .JPEG, ...), broken links too, which are named when they are read
    folders: list[bytes]
    others: Counter[str]  # how many files have which other suffix, in small letters; "" for none
    hidden: int  # number of hidden and system entries (._x.jpg, .ipynb_checkpoints, @eaDir, lost+found)

    @property
    def ignored(self) -> int:
        """Number of entries that are neither images nor folders."""
        return self.others.total() + self.hidden


def require_one_line(folder: Path | str, name: bytes) -> bytes:
    """`name`. Raises DataError where it holds a line break, which would forge lines of messages and lists."""
    if b"\n" in name:
        raise DataError(f"{folder}: {os.fsdecode(name)[:200]!r} contains a line break. Rename this file.")
    return name


def list_folder(folder: Path) -> FolderNames:
    """The entries of `folder`, links followed. Raises DataError where it cannot be listed."""
    images, folders, others = [], [], Counter[str]()
    try:
        entries, hidden = scan_folder(os.fsencode(folder))
        for entry in entries:
            if _is_folder(entry):
                folders.append(require_one_line(folder, entry.name))
            elif is_image_name(entry.name):
                images.append(require_one_line(folder, entry.name))
            else:
                others[get_suffix(entry.name)] += 1
    except FileNotFoundError:
        raise DataError(f"{folder}: folder not found. Check the path (--data).") from None
    except NotADirectoryError:
        raise DataError(f"{folder}: is a file, not a folder. Check the path (--data).") from None
    except PermissionError:
        raise DataError(f"{folder}: permission denied. To allow reading:  chmod -R u+rX {folder}") from None
    except OSError as error:
        raise DataError(f"{folder}: not readable ({error.strerror}). Check the disk or mount, and try again.") from None
    return FolderNames(images, folders, others, hidden)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    """False for a link that leads to itself: it is named when it is read."""
    try:
        return entry.is_dir()
    except OSError:
        return False
