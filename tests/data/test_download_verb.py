"""`paceline download` as a user gives it, against a server on the loopback: small archives of the real layouts."""

from __future__ import annotations

import hashlib
import io
import re
import shlex
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from coco_sets import make_set
from loopback_site import Site
from messages import check_line, check_text

from paceline._utils.reporter import Lines
from paceline.cli.main import main
from paceline.data.download.data_sets import DATA_SETS, Archive
from paceline.data.formats import published_sets
from paceline.data.formats.published_sets import CocoCounts
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed

COCO_2017, IMAGENET, VOC_2007 = (DATA_SETS[name].archives for name in ("coco2017", "imagenet", "voc2007"))

# Of the folders that each of COCO's archives holds.
INSIDE = {"annotations_trainval2017.zip": "annotations", "val2017.zip": "val2017", "train2017.zip": "train2017"}


@pytest.fixture
def coco(site: Site, tmp_path: Path, monkeypatch) -> Site:
    """A server with three zips as COCO's, of a few photos, and a menu that knows their digests."""
    root, archives = make_set(tmp_path / "made"), []
    for archive in COCO_2017:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as book:
            for path in sorted((root / INSIDE[archive.name]).iterdir()):
                book.write(path, path.relative_to(root))
        site.files[f"/{archive.path}"] = content = held.getvalue()
        gives = tuple((name, 0 if not count else len(list((root / name).iterdir()))) for name, count in archive.gives)
        archives.append(
            Archive(archive.path, len(content), hashlib.sha256(content).hexdigest(), bases=(site.url,), gives=gives)
        )
    monkeypatch.setitem(DATA_SETS, "coco2017", replace(DATA_SETS["coco2017"], archives=tuple(archives)))
    monkeypatch.setattr(published_sets, "COCO2017", CocoCounts(3, 2, 2))
    monkeypatch.setattr(published_sets, "CATEGORIES_SHA256", hashlib.sha256(b"3 dog\n7 cat\n").hexdigest())
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return site


def download(*words: object) -> int:
    return main(["download", *map(str, words)])


def archives_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".zip", ".tar"))


def test_one_command_ends_in_a_folder_to_train_on(coco: Site, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "my data"
    assert download("coco2017", folder) == 0
    text = capsys.readouterr().out
    check_text(text, "COCO 2017", "2 training", "of 3", "2 validation images")
    assert text.rstrip().endswith(f"to train:  paceline train ssd --data '{folder}' --weights resnet34-mlperf")
    (prepared,) = re.findall(r"^paceline (prepare .*)", text, re.MULTILINE)
    assert main(shlex.split(prepared)) == 0
    words = shlex.split(text.rpartition("paceline train ")[2].partition(" --weights")[0])
    few = ["--global-batch-size", "2", "--bn-batch-size", "2", "--optim.lr", "1e-3", "--epochs", "30"]
    assert main(["plan", *words, *few]) == 0
    assert Manifest.load(folder).expect == "coco2017" and not archives_in(folder)
    assert prepare_if_needed(folder, kind="boxes", reporter=Lines(pytest.fail), small=0) == folder
    assert not [path for path in folder.iterdir() if path.name.startswith(".") or ".part" in path.name]


def test_the_same_command_again_fetches_nothing(coco: Site, tmp_path: Path, capsys) -> None:
    assert download("coco2017", tmp_path / "out") == 0
    coco.asked.clear()
    assert download("coco2017", tmp_path / "out") == 0
    assert not coco.asked and "train2017.zip: already unpacked" in capsys.readouterr().out


def test_archives_stay_where_that_is_asked_or_they_were_there(coco: Site, tmp_path: Path, capsys) -> None:
    assert download("coco2017", tmp_path / "kept", "--keep-archives") == 0
    assert archives_in(tmp_path / "kept") == sorted(INSIDE)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "val2017.zip").write_bytes(coco.files["/zips/val2017.zip"])
    assert download("coco2017", mine) == 0
    assert archives_in(mine) == ["val2017.zip"] and check_line(capsys.readouterr().out, "val2017.zip", "kept")


def test_archives_alone(coco: Site, tmp_path: Path, capsys) -> None:
    assert download("coco2017", tmp_path / "zips", "--no-unpack") == 0
    assert sorted(path.name for path in (tmp_path / "zips").iterdir()) == sorted(INSIDE)
    assert "--zip-dir" in capsys.readouterr().out


@pytest.mark.parametrize("flat", [True, False])
def test_a_folder_of_archives_is_read_where_it_is(coco: Site, tmp_path: Path, flat: bool) -> None:
    source = tmp_path / "usb"
    for path, content in coco.files.items():
        target = source / (Path(path).name if flat else path[1:])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    before = sorted(path for path in source.rglob("*"))
    assert download("coco2017", tmp_path / "out", "--source", source) == 0
    assert not coco.asked and not archives_in(tmp_path / "out")
    assert sorted(path for path in source.rglob("*")) == before
    assert download("coco2017", tmp_path / "copied", "--source", source.as_uri(), "--keep-archives") == 0
    assert archives_in(tmp_path / "copied") == sorted(INSIDE)


def test_a_mirror_in_place_of_the_publisher(coco: Site, tmp_path: Path) -> None:
    coco.files = {f"/mirror/{Path(path).name}": content for path, content in coco.files.items()}
    assert download("coco2017", tmp_path / "out", f"--source={coco.url}/mirror/") == 0
    assert all(path.startswith("/mirror/") for path, _ in coco.asked)


def test_a_wrong_archive_is_refused_and_leaves_nothing(coco: Site, tmp_path: Path, capsys) -> None:
    coco.flip = 500
    assert download("coco2017", tmp_path / "out") == 2
    assert "; expected " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    source = tmp_path / "usb"
    source.mkdir()
    for path, content in coco.files.items():
        (source / Path(path).name).write_bytes(content[:-1] + b"?")
    assert download("coco2017", tmp_path / "out", "--source", source) == 2
    check_text(capsys.readouterr().err, "--source")
    assert not (tmp_path / "out").exists()


def test_the_network_gone_in_the_middle(coco: Site, tmp_path: Path, capsys) -> None:
    held = coco.files.pop("/zips/train2017.zip")
    assert download("coco2017", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "train2017.zip" in error and "404" in error and "Traceback" not in error
    assert not (tmp_path / "out" / "manifest.json").exists()
    coco.files["/zips/train2017.zip"] = held
    coco.asked.clear()
    assert download("coco2017", tmp_path / "out") == 0
    assert {path for path, _ in coco.asked} == {"/zips/train2017.zip"}


def test_an_interrupt_says_how_to_go_on(coco: Site, tmp_path: Path, monkeypatch, capsys) -> None:
    from paceline.data.download import data_sets

    def stopped(*words, **known) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "my data"
    with monkeypatch.context() as patch:
        patch.setattr(data_sets, "unpack", stopped)
        assert download("coco2017", folder, "--keep-archives") == 75
    assert f"paceline download coco2017 '{folder}' --keep-archives\n" in (said := capsys.readouterr().out)
    assert main(shlex.split(said.partition("to resume:  paceline ")[2].splitlines()[0])) == 0


def test_room_for_all_of_it_is_asked_for_before_the_first_byte(coco: Site, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("paceline.data.download.fetch.free_bytes", lambda folder: sum(map(len, coco.files.values())))
    assert download("coco2017", tmp_path / "out") == 2
    assert check_text(capsys.readouterr().err, "free") and not coco.asked
    assert not (tmp_path / "out").exists()


def test_photos_that_went_missing_are_named(coco: Site, tmp_path: Path, capsys) -> None:
    assert download("coco2017", tmp_path / "out") == 0
    (tmp_path / "out" / "train2017" / "1.jpg").unlink()
    assert download("coco2017", tmp_path / "out") == 0  # the archive is brought again, what is there stays
    assert (tmp_path / "out" / "train2017" / "1.jpg").is_file()


def test_a_part_of_it_is_refused_where_the_whole_is_expected(coco: Site, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(published_sets, "COCO2017", CocoCounts(118_287, 117_266, 5_000))
    assert download("coco2017", tmp_path / "out") == 2
    check_text(capsys.readouterr().err, "COCO 2017", "117,266", "of 118,287")
    assert main(["prepare", "coco", str(tmp_path / "out")]) == 0
    said = "a subset of COCO 2017: 2 of 117,266 training images with objects, 2 of 5,000 validation images"
    assert said in capsys.readouterr().out
    assert said.endswith(Manifest.load(tmp_path / "out").part_of)


def _tar(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as book:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            book.addfile(info, io.BytesIO(content))
    return held.getvalue()


def test_two_archives_that_share_their_folders(site: Site, tmp_path: Path, monkeypatch, capsys) -> None:
    photo = next((make_set(tmp_path / "made") / "train2017").iterdir()).read_bytes()
    place = "VOCdevkit/VOC2007"
    xml = "<annotation><filename>{}.jpg</filename><size><width>40</width><height>30</height></size><object><name>cat</name>"
    xml += "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>20</xmax><ymax>25</ymax></bndbox></object></annotation>"
    archives = []
    for archive, lists in zip(VOC_2007, ({"trainval": "1 2", "train": "1", "val": "2"}, {"test": "3"})):
        numbers = next(iter(lists.values())).split()
        content = _tar(
            {
                **{f"{place}/JPEGImages/{i}.jpg": photo for i in numbers},
                **{f"{place}/Annotations/{i}.xml": xml.format(i).encode() for i in numbers},
                **{f"{place}/ImageSets/Main/{name}.txt": f"{text}\n".encode() for name, text in lists.items()},
            }
        )
        site.files[f"/{archive.path}"] = content
        digests = hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest()
        archives.append(replace(archive, size=len(content), sha256=digests[0], md5=digests[1], bases=(site.url,)))
    monkeypatch.setitem(DATA_SETS, "voc2007", replace(DATA_SETS["voc2007"], archives=tuple(archives)))
    assert download("voc2007", tmp_path / "out") == 0
    assert f"--data {tmp_path / 'out' / place}" in capsys.readouterr().out
    assert len(list((tmp_path / "out" / place / "JPEGImages").iterdir())) == 3
    assert Manifest.load(tmp_path / "out" / place).splits.keys() >= {"train", "val"}


def test_imagenet_says_what_to_fetch_and_checks_what_is_there(site: Site, tmp_path: Path, monkeypatch, capsys) -> None:
    assert download("imagenet", tmp_path) == 2
    text = capsys.readouterr().err
    for archive in IMAGENET:
        assert archive.name in text and archive.md5 in text
    assert "147,897,477,120 bytes" in text and "6,744,924,160 bytes" in text and "image-net.org" in text
    small = tuple(replace(archive, size=3, md5=hashlib.md5(archive.name[-3:].encode()).hexdigest()) for archive in IMAGENET)
    monkeypatch.setitem(DATA_SETS, "imagenet", replace(DATA_SETS["imagenet"], archives=small))
    for archive in small:
        (tmp_path / archive.name).write_bytes(archive.name[-3:].encode())
    (tmp_path / small[1].name).write_bytes(b"???")
    assert download("imagenet", tmp_path) == 2
    text = capsys.readouterr().err
    assert text.count("checksum verified") == 2 and "its MD5" in text
    (tmp_path / small[1].name).write_bytes(b"tar")
    assert download("imagenet", tmp_path) == 0
    assert "--train-tar" in capsys.readouterr().out
    site.files = {f"/{archive.name}": archive.name[-3:].encode() for archive in small}
    assert download("imagenet", tmp_path / "copy", "--source", site.url) == 0
    assert (tmp_path / "copy" / small[0].name).read_bytes() == b"tar"


@pytest.mark.parametrize(
    "words, text",
    [
        ([], "dataset ... folder"),
        (["coco2017"], "dataset ... folder"),
        (["coco", "out"], "'coco'"),
        (["coco2017", "out", "--sorce", "x"], "Did you mean --source?"),
        (["coco2017", __file__], "a file"),
    ],
    ids=range(5),
)
def test_a_mistyped_command_is_one_message(words: list[str], text: str, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert download(*words) == 2
    assert check_text(capsys.readouterr().err, text)
    assert not list(tmp_path.iterdir())


def test_every_row_of_the_menu_is_whole() -> None:
    for name, chosen in DATA_SETS.items():
        assert bool(chosen.account) != all(archive.bases for archive in chosen.archives), name
        for archive in chosen.archives:
            assert len(archive.sha256) in (0, 64) and len(archive.md5) in (0, 32) and archive.sha256 + archive.md5
            assert chosen.account or (archive.gives and archive.size)
            assert all(url.startswith(("http://", "https://")) for url in archive.urls)


@pytest.mark.nightly("torchvision takes seconds to import")
def test_imagenets_and_vocs_sums_are_torchvisions() -> None:
    from torchvision.datasets.imagenet import ARCHIVE_META
    from torchvision.datasets.voc import DATASET_YEAR_DICT

    assert {(archive.name, archive.md5) for archive in IMAGENET} == set(ARCHIVE_META.values())
    theirs = {
        row["filename"]: (row["url"], row["md5"])
        for row in DATASET_YEAR_DICT.values()
        if row["md5"] != "2629fa636546599198acfcfbfcf1904a"
    }
    for archive in (*VOC_2007, *DATA_SETS["voc2012"].archives):
        assert theirs[archive.name] == (archive.urls[0], archive.md5)


def test_a_mirror_of_another_scheme_is_refused_in_a_line(coco: Site, tmp_path: Path, capsys) -> None:
    assert download("coco2017", tmp_path / "out", "--source", "ftp://host/coco") == 2
    said = capsys.readouterr().err
    assert check_text(said, "http://", "https://", "file://") and "Traceback" not in said
