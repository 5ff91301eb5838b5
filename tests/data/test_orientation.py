"""EXIF orientation beside Pillow's ImageOps.exif_transpose: what is read, which pixels are taken, how they are turned."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from drawn import some
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from orientation import encode, note, noted, shown, stored
from PIL import Image, ImageOps

from paceline.config.maskrcnn import InstanceInput
from paceline.config.resnet import ImageInput
from paceline.config.ssd import BoxInput
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.crop import CropWindow, random_resized_crop, resize_and_center_crop, source_region
from paceline.data.transforms.decode import SampleSpec, dct_scale, decode_crop
from paceline.data.transforms.exif import orientations, read_index_flags, read_orientation
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.resample import resample_torch
from paceline.data.transforms.sample import decode_and_transform, evaluation_spec
from paceline.models.maskrcnn import transforms as maskrcnn_transforms
from paceline.models.ssd import transforms as ssd_transforms

ALL = range(1, 9)
DECODERS = ("simplejpeg", "nvimgcodec", "pillow")


@pytest.fixture(params=DECODERS)
def decoder(request):
    if request.param == "nvimgcodec":
        pytest.importorskip("nvidia.nvimgcodec", reason="the extra paceline[fast] is not installed")
    return request.param


def _picture(height: int, width: int) -> Image.Image:
    """Smooth color, different in every corner and along every side."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [127 + 120 * np.sin((x * (c + 1) + y * (3 - c)) / 17.0 + c) for c in range(3)]
    pixels = np.stack(waves, axis=2)
    pixels[: height // 3, : width // 4] = (250, 20, 90)
    return Image.fromarray(pixels.astype(np.uint8))


def _ours(data: bytes, window: CropWindow, decoder: str, *, flip: bool = False, law: str = "bilinear-antialias"):
    out = np.full((window.resized_height - window.skip_top, window.resized_width - window.skip_left, 3), 77, np.uint8)
    decode_crop(data, SampleSpec("it", read_header(data, "it", "apply"), window, None, flip, decoder=decoder, law=law), out)  # pyright: ignore[reportArgumentType]
    return out


def _theirs(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image.convert("RGB")))


@pytest.mark.parametrize("orientation", ALL)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_and_the_size_are_those_that_pillow_shows(kind, orientation):
    data = encode(_picture(20, 30), orientation, kind)
    assert read_orientation(data) == orientation
    assert read_header(data, "it", "apply")[:2] == _theirs(data).shape[:2]
    assert read_header(data, "it")[:2] == (20, 30), "as stored, where nobody asked for more"


@pytest.mark.parametrize("orientation", ALL)
def test_a_tiff_is_turned_by_pillow_and_not_twice(orientation):
    file = io.BytesIO()
    _picture(20, 30).save(file, "TIFF", tiffinfo={0x0112: orientation})
    data = file.getvalue()
    with Image.open(io.BytesIO(data)) as image:
        wanted = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(_ours(data, CropWindow(0, 0, *wanted.shape[:2], *wanted.shape[:2]), "simplejpeg"), wanted)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_both_byte_orders_and_a_long_for_a_short_are_read(order, kind):
    value = struct.pack(order + ("HH" if kind == 3 else "I"), *((6, 0) if kind == 3 else (6,)))
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    block = head + struct.pack(order + "HHHI", 1, 0x0112, kind, 1) + value
    for prefix in (b"\xff\xd8", b"\xff\xd8\xff\xff\xe0\x00\x04ab"):  # fill bytes, another segment first
        data = prefix + b"\xff\xe1" + (len(block) + 8).to_bytes(2, "big") + b"Exif\0\0" + block + b"\xff\xda"
        assert read_orientation(data) == 6


def test_only_the_first_exif_before_the_picture_counts():
    plain = encode(_picture(8, 8))
    assert read_orientation(noted(noted(plain, 3), 6)) == 6
    thumbnail = noted(plain, 8)
    assert read_orientation(plain[:-2] + thumbnail[2:]) == 1, "what follows the picture's beginning is no note on it"


def test_damaged_notes_mean_upright_and_are_looked_for_in_the_first_parts_only():
    block = note(6).tobytes()
    jpeg = encode(_picture(8, 8), 6)
    assert read_orientation(jpeg) == 6
    at = jpeg.index(block[6:])
    for wrong in (0, 9, 77, 65535):
        assert (
            read_orientation(
                jpeg[: at + 18] + struct.pack("<H", wrong)[:: 1 if block[6:8] == b"II" else -1] + jpeg[at + 20 :]
            )
            == 1
        )
    for repeats, found in ((10, 6), (200_000, 1)):
        size = struct.pack("<I", len(block) - 6)
        assert read_orientation(jpeg[:2] + b"\xff\xe1\x00\x02" * repeats + jpeg[2:]) == found
        assert (
            read_orientation(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0abcdxxxx" * repeats + size[::-1] + b"eXIf" + block[6:])
            == found
        )
        assert read_orientation(b"RIFF\0\0\0\0WEBP" + b"abcd\0\0\0\0" * repeats + b"EXIF" + size + block[6:]) == found


def test_a_directory_that_promises_more_notes_than_it_has_means_upright():
    other = struct.pack("<HHII", 0x0100, 4, 1, 640)
    for rest in range(12):  # what is left of the last note
        block = b"II*\0" + struct.pack("<IH", 8, 3) + other + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)[:rest]
        assert read_orientation(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(block)) + b"eXIf" + block) == 1


@examples(300)
@given(kind=st.sampled_from(["JPEG", "PNG", "WEBP"]), data=st.data())
def test_any_damage_gives_some_orientation_and_no_error(kind, data):
    whole = bytearray(encode(_picture(6, 7), 6, kind))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, min(len(whole), 200) - 1))] = data.draw(st.integers(0, 255))
    assert read_orientation(bytes(whole[: data.draw(st.integers(0, len(whole)))])) in ALL


@examples(150)
@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    orientation=st.sampled_from(ALL),
    flip=st.booleans(),
    progressive=st.booleans(),
    name=st.sampled_from(["simplejpeg", "pillow"]),
    data=st.data(),
)
def test_any_window_of_a_turned_photo_is_a_crop_of_what_pillow_shows(
    height, width, orientation, flip, progressive, name, data
):
    jpeg = encode(_picture(height, width), orientation, quality=90, progressive=progressive)
    whole = _theirs(jpeg)
    top = data.draw(st.integers(0, whole.shape[0] - 1))
    left = data.draw(st.integers(0, whole.shape[1] - 1))
    rows = data.draw(st.integers(1, whole.shape[0] - top))
    columns = data.draw(st.integers(1, whole.shape[1] - left))
    wanted = whole[top : top + rows, left : left + columns]
    got = _ours(jpeg, CropWindow(top, left, rows, columns, rows, columns), name, flip=flip)
    np.testing.assert_array_equal(got, wanted[:, ::-1] if flip else wanted)


@examples(60)
@given(
    orientation=st.sampled_from(ALL),
    index=st.integers(0, 1000),
    flip=st.booleans(),
    law=st.sampled_from(["bilinear-antialias", "bilinear"]),
    kind=st.sampled_from(["JPEG", "PNG"]),
)
def test_resized_windows_are_bit_for_bit_those_of_the_upright_picture(orientation, index, flip, law, kind):
    """At full scale: what is resized, flipped and cut is the same array as of an upright file."""
    data = encode(_picture(90, 120), orientation, kind)
    upright = Image.fromarray(_theirs(data))
    window = random_resized_crop(upright.height, upright.width, 70, SampleRng(0, 0, index))
    window = window._replace(skip_top=index % 5, skip_left=index % 7)
    if kind == "PNG" or law == "bilinear":  # Pillow resizes, or torch does, of the region
        wanted = _ours(encode(upright, 1, "PNG"), window, "pillow", flip=flip, law=law)
        np.testing.assert_array_equal(_ours(data, window, "pillow", flip=flip, law=law), wanted)
        if kind == "PNG":
            return
    if dct_scale(window) == 1 or law == "bilinear":
        region = np.asarray(upright)[window.top : window.top + window.height, window.left : window.left + window.width]
        wanted = np.empty((70 - index % 5, 70 - index % 7, 3), np.uint8)
        resample_torch(np.array(region), window, wanted, flip, law)  # pyright: ignore[reportArgumentType]
        np.testing.assert_array_equal(_ours(data, window, "simplejpeg", flip=flip, law=law), wanted)


@pytest.mark.parametrize("orientation", ALL)
def test_photos_turn_at_every_scale_with_every_decoder(shared_data, seed, decoder, orientation):
    """Beside Pillow's crop and resize of the turned full picture, in the bounds of test_decode.py."""
    paths = some(sorted((shared_data / "coco_mini" / "train2017").glob("*.jpg")), 6, seed)
    scales = set()
    for number, path in enumerate(paths):
        jpeg = noted(path.read_bytes(), orientation)
        whole = Image.fromarray(_theirs(jpeg))
        for side in (300, 150, 60, 30):
            window = random_resized_crop(whole.height, whole.width, side, SampleRng(seed, 0, number), area=(0.4, 1))
            if side == 60:
                window = resize_and_center_crop(whole.height, whole.width, side + 3, side)
            scales.add(dct_scale(window))
            region = whole.crop((window.left, window.top, window.left + window.width, window.top + window.height))
            resized = np.asarray(region.resize((window.resized_width, window.resized_height), Image.Resampling.BILINEAR))
            gap = np.abs(_ours(jpeg, window, decoder).astype(int) - resized[window.skip_top :, window.skip_left :])
            assert gap.mean() < (0.3 if dct_scale(window) == 1 else 6)
            assert dct_scale(window) > 1 or gap.max() <= 2
    assert {1, 2, 4} <= scales


@pytest.mark.parametrize("orientation", ALL)
@pytest.mark.parametrize("name", ["simplejpeg", "pillow"])
def test_at_a_reduced_scale_a_window_is_the_turned_window_of_the_stored_photo(name, orientation):
    """Sides that no scale divides: a region placed half a scaled pixel beside itself would show."""
    jpeg = encode(_picture(203, 331), orientation, quality=95)
    whole = read_header(jpeg, "it", "apply")
    for index in range(20):
        window = random_resized_crop(
            whole.height, whole.width, 40 // (1 + index % 3), SampleRng(3, 0, index), area=(0.5, 1)
        )
        assert dct_scale(window) > 1
        top, left, height, width, _ = source_region(window, orientation, whole.height, whole.width)
        side = window.resized_height
        pixels = np.empty((side, side, 3), np.uint8)
        stored_window = CropWindow(top, left, height, width, side, side)
        decode_crop(jpeg, SampleSpec("it", read_header(jpeg, "it"), stored_window, None, False, decoder=name), pixels)  # pyright: ignore[reportArgumentType]
        gap = np.abs(_ours(jpeg, window, name).astype(int) - shown(Image.fromarray(pixels), orientation))
        assert gap.max() <= 2


def test_decoders_agree_on_turned_photos_bit_for_bit(shared_data, seed):
    pytest.importorskip("nvidia.nvimgcodec", reason="the extra paceline[fast] is not installed")
    photos = sorted((shared_data / "coco_mini" / "train2017").glob("*.jpg"))
    for number, path in enumerate(some(photos, 16, seed)):
        jpeg = noted(path.read_bytes(), 1 + number % 8)
        header = read_header(jpeg, "it", "apply")
        window = random_resized_crop(header.height, header.width, 160, SampleRng(1, 0, number))
        np.testing.assert_array_equal(*(_ours(jpeg, window, name, flip=True) for name in ("simplejpeg", "nvimgcodec")))


@pytest.mark.parametrize("orientation", ALL)
def test_samples_of_a_turned_photo_are_those_of_the_upright_one(orientation):
    """Lossless files, so that pixels are equal too: crops, boxes and evaluation, of all three tasks."""
    upright = _picture(90, 130)
    plain, turned = encode(upright, 1, "PNG"), encode(stored(upright, orientation), orientation, "PNG")
    boxes, classes = np.array([[10.0, 5, 40, 30], [60, 40, 70, 50]]), np.array([1, 2])

    def crop(data: bytes, index: int):
        out = np.zeros((64, 64, 3), np.uint8)
        settings = BoxInput(image_size=64, exif="apply")
        header, random = read_header(data, "it", "apply"), SampleRng(0, 0, index)
        draw = ssd_transforms.sample_box_spec(header, "it", boxes, classes, random, settings)
        decode_and_transform(data, draw, out)
        return out, draw.label.boxes, draw.label.classes

    def whole(data: bytes):
        square, photo, padded = (
            np.zeros((64, 64, 3), np.uint8),
            np.zeros((48, 48, 3), np.uint8),
            np.zeros((96, 128, 3), np.uint8),
        )
        header = read_header(data, "it", "apply")
        instance = InstanceInput(min_size=(64,), max_size=128)
        draws = (
            ssd_transforms.evaluation_box_spec(header, "it", BoxInput(image_size=64)),
            evaluation_spec(header, "it", 0, ImageInput(eval_resize_size=50, eval_crop_size=48)),
            maskrcnn_transforms.evaluation_instance_spec(header, "it", instance, 64, (96, 128)),
        )
        for draw, out in zip(draws, (square, photo, padded)):
            decode_and_transform(data, draw, out)
        size = draws[2].label.size
        return square, photo, padded, size

    for index in range(8):
        for ours, wanted in zip(crop(turned, index), crop(plain, index)):
            np.testing.assert_array_equal(ours, wanted)
    for ours, wanted in zip(whole(turned), whole(plain)):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("orientation", ALL)
def test_ignored_a_turned_photo_is_read_as_it_is_stored(orientation, decoder):
    picture = _picture(40, 64)
    turned, plain = encode(picture, orientation), encode(picture)
    pair = [np.zeros((32, 32, 3), np.uint8) for _ in range(2)]
    for data, out in zip((turned, plain), pair):
        header = read_header(data, "it")
        assert header[:2] == (40, 64)
        decode_crop(data, SampleSpec("it", header, CropWindow(0, 0, 40, 64, 32, 32), None, False, decoder=decoder), out)
    np.testing.assert_array_equal(*pair)


def test_flags_hold_the_orientation_and_an_older_versions_flag_does_not():
    flags = np.array([read_index_flags(orientation) | 3 for orientation in ALL] + [4], np.uint8)
    assert orientations(flags).tolist() == [*ALL, 0]
    assert read_index_flags(1) == 0


def test_the_helper_stores_what_pillow_shows():
    picture = _picture(4, 7)
    for orientation in ALL:
        assert shown(stored(picture, orientation), orientation).tobytes() == picture.tobytes()
