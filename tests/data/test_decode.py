"""Decoded pixels beside Pillow's, the way torchvision's ImageFolder reads: open, convert("RGB"), crop, resize.

Bounds, in levels of 255: at full scale every decoder is within 2 of the reference everywhere and within 0.3 on average;
at a reduced DCT scale within 6 on average of any photo (2 typically), which is the price of decoding less.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import simplejpeg
from drawn import some
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text, raises
from PIL import Image

from paceline._utils.errors import DataError, RecipeError
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms import decode
from paceline.data.transforms.crop import CropWindow, random_resized_crop, resize_and_center_crop
from paceline.data.transforms.decode import SampleSpec, dct_scale, decode_alone, decode_crop, require_decoder
from paceline.data.transforms.image_io import read_header

DECODERS = ("simplejpeg", "nvimgcodec", "nvjpeg", "pillow")


@pytest.fixture(params=DECODERS)
def decoder(request):
    if request.param.startswith("nvimgcodec"):
        pytest.importorskip("nvidia.nvimgcodec", reason="the extra paceline[fast] is not installed")
    return request.param


def _picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Smooth color with edges, so that JPEG treats it as a photo."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [127 + 120 * np.sin((x * (c + 1) + y * (3 - c)) / 17.0 + seed + c) for c in range(3)]
    pixels = np.stack(waves, axis=2)
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 90)
    return Image.fromarray(pixels.astype(np.uint8))


def _encode(picture: Image.Image, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _ours(data: bytes, window: CropWindow, size: tuple[int, int], decoder: str, *, flip: bool = False) -> np.ndarray:
    out = np.full((*size, 3), 77, np.uint8)
    header = read_header(data, "it")
    decode_crop(data, SampleSpec("it", header, window, None, flip, decoder=decoder), out)  # pyright: ignore[reportArgumentType]
    return out


def _reference(data: bytes, window: CropWindow, size: tuple[int, int]) -> np.ndarray:
    """What torchvision's ImageFolder, a crop, a PIL resize and a crop give."""
    picture = Image.open(io.BytesIO(data))
    picture.info.pop("transparency", None)
    top, left, height, width = window[:4]
    region = picture.convert("RGB").crop((left, top, left + width, top + height))
    resized = np.asarray(region.resize((window.resized_width, window.resized_height), Image.Resampling.BILINEAR))
    return resized[window.skip_top : window.skip_top + size[0], window.skip_left : window.skip_left + size[1]]


def _difference(left: np.ndarray, right: np.ndarray) -> tuple[int, float]:
    gap = np.abs(left.astype(int) - right)
    return int(gap.max()), float(gap.mean())


@pytest.fixture
def photos(shared_data, seed):
    """Call it with a number of photos."""
    paths = sorted((shared_data / "coco_mini" / "train2017").glob("*.jpg"))
    return lambda count: [path.read_bytes() for path in some(paths, count, seed)]


def test_full_scale_crops_of_photos_are_within_two_levels_of_pillow(photos, decoder, seed):
    checked = 0
    for index, data in enumerate(photos(40)):
        header = read_header(data, "it")
        window = random_resized_crop(header.height, header.width, 224, SampleRng(seed, 0, index))
        if dct_scale(window) == 1:
            most, mean = _difference(_ours(data, window, (224, 224), decoder), _reference(data, window, (224, 224)))
            assert most <= 2
            assert mean < 0.3
            checked += 1
    assert checked > 20


def test_dct_scaled_crops_of_photos_are_within_six_levels_on_average(photos, decoder, seed):
    means, scales = [], set()
    for index, data in enumerate(photos(40)):
        header = read_header(data, "it")
        window = random_resized_crop(header.height, header.width, 64, SampleRng(seed, 0, index), area=(0.1, 1))
        scales.add(dct_scale(window))
        _, mean = _difference(_ours(data, window, (64, 64), decoder), _reference(data, window, (64, 64)))
        means.append(mean)
    assert {2, 4} <= scales
    assert max(means) < 6
    assert np.mean(means) < 2.5


def test_evaluation_crops_of_photos_are_within_two_levels_of_pillow(photos, decoder):
    for data in photos(12):
        header = read_header(data, "it")
        window = resize_and_center_crop(header.height, header.width, 400, 380)
        most, mean = _difference(_ours(data, window, (380, 380), decoder), _reference(data, window, (380, 380)))
        assert dct_scale(window) == 1
        assert most <= 2
        assert mean < 0.3


def test_the_extra_gives_the_default_decoders_pixels_bit_for_bit(photos, seed):
    pytest.importorskip("nvidia.nvimgcodec", reason="the extra paceline[fast] is not installed")
    for index, data in enumerate(photos(40)):
        header = read_header(data, "it")
        window = random_resized_crop(header.height, header.width, 160, SampleRng(1 + seed, 0, index))
        pair = [_ours(data, window, (160, 160), name, flip=True) for name in ("simplejpeg", "nvimgcodec")]
        np.testing.assert_array_equal(*pair)


def test_dct_scaled_pixels_are_pillows_own_bit_for_bit(photos, seed):
    for index, data in enumerate(photos(20)):
        header = read_header(data, "it")
        window = random_resized_crop(header.height, header.width, 32, SampleRng(2 + seed, 0, index), area=(0.3, 1))
        assert dct_scale(window) > 1
        pair = [_ours(data, window, (32, 32), name) for name in ("simplejpeg", "pillow")]
        np.testing.assert_array_equal(*pair)


@examples(60)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    options=st.sampled_from(
        [
            {"quality": 90, "subsampling": subsampling, "progressive": progressive}
            for subsampling in (0, 1, 2)
            for progressive in (False, True)
        ]
        + [{"quality": 90, "restart_marker_rows": 1}, {"quality": 90, "optimize": True}]
    ),
    gray=st.booleans(),
    data=st.data(),
)
def test_any_window_of_any_jpeg_equals_a_crop_of_the_full_decode(height, width, options, gray, data):
    """Stopping below the region changes nothing in it: the pixels are those of the whole picture, cropped."""
    picture = _picture(height, width)
    jpeg = _encode(picture.convert("L") if gray else picture, **options)
    top = data.draw(st.integers(0, height - 1))
    left = data.draw(st.integers(0, width - 1))
    crop_height = data.draw(st.integers(1, height - top))
    crop_width = data.draw(st.integers(1, width - left))
    # The region at its own size: no resize, so equality is exact.
    window = CropWindow(top, left, crop_height, crop_width, crop_height, crop_width)
    whole = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    wanted = whole[top : top + crop_height, left : left + crop_width]
    got = _ours(jpeg, window, (crop_height, crop_width), "simplejpeg")
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(_ours(jpeg, window, (crop_height, crop_width), "simplejpeg", flip=True), wanted[:, ::-1])


@examples(40)
@given(
    height=st.integers(1, 200),
    width=st.integers(1, 200),
    out_height=st.integers(1, 40),
    out_width=st.integers(1, 40),
    index=st.integers(0, 1000),
    name=st.sampled_from(["simplejpeg", "pillow"]),
)
def test_any_size_to_any_size_is_close_to_the_reference(height, width, out_height, out_width, index, name):
    jpeg = _encode(_picture(height, width), quality=95)
    crop = random_resized_crop(height, width, 8, SampleRng(0, 0, index))
    window = CropWindow(*crop[:4], out_height, out_width)
    most, mean = _difference(
        _ours(jpeg, window, (out_height, out_width), name), _reference(jpeg, window, (out_height, out_width))
    )
    if dct_scale(window) == 1:
        assert most <= 2
    else:
        assert mean < 25  # sharp synthetic waves near the sampling limit: far harder than photos


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("JPEG", "RGB"),
        ("JPEG", "L"),
        ("JPEG", "CMYK"),
        ("PNG", "RGB"),
        ("PNG", "RGBA"),
        ("PNG", "P"),
        ("PNG", "LA"),
        ("PNG", "1"),
        ("WEBP", "RGB"),
        ("BMP", "RGB"),
        ("GIF", "P"),
    ],
)
def test_every_colour_type_comes_out_as_pillow_converts_it(kind, mode, decoder):
    picture = _picture(60, 80)
    if mode == "LA":
        picture = picture.convert("L")
        picture.putalpha(100)
    else:
        picture = picture.convert(mode)
    data = _encode(picture, kind, **({"quality": 90} if kind == "JPEG" else {}))
    window = CropWindow(5, 7, 50, 60, 40, 48)
    most, _ = _difference(_ours(data, window, (40, 48), decoder), _reference(data, window, (40, 48)))
    assert most <= 2
    assert read_header(data, "it")[:2] == (60, 80)


def test_a_palette_with_transparency_gives_its_colours_without_a_warning(decoder):
    picture = _picture(20, 20).convert("P")
    data = _encode(picture, "PNG", transparency=bytes(range(256)))
    window = CropWindow(0, 0, 20, 20, 20, 20)
    np.testing.assert_array_equal(_ours(data, window, (20, 20), decoder), _reference(data, window, (20, 20)))


def test_the_header_is_read_without_decoding(photos):
    for data in photos(40):
        picture = Image.open(io.BytesIO(data))
        header = read_header(data[: read_header(data, "it").height_at + 5], "it")
        assert (header.width, header.height) == picture.size
        assert header.components == len(picture.getbands())
        assert header.plain_jpeg
        assert struct.unpack(">H", data[header.height_at : header.height_at + 2]) == (header.height,)


def test_header_of_odd_jpegs():
    gray = read_header(_encode(_picture(8, 9).convert("L")), "it")
    assert (gray.components, gray.plain_jpeg) == (1, True)
    cmyk = read_header(_encode(_picture(8, 9).convert("CMYK")), "it")
    assert (cmyk.components, cmyk.plain_jpeg) == (4, False)
    progressive = read_header(_encode(_picture(8, 9), progressive=True), "it")
    assert (progressive.plain_jpeg, progressive.height_at) == (True, 0)
    filled = _encode(_picture(8, 9)).replace(b"\xff\xc0", b"\xff\xff\xc0", 1)  # a fill byte before the marker
    assert read_header(filled, "it")[:2] == (8, 9)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello, I am a text file named .jpg\n" * 20, "format ... b'hello, I am "),
        (b"\xff\xd8\xff", "decoded"),
        (b"\x00" * 5000, "decoded"),
    ],
)
def test_bytes_that_are_no_image_are_named(data, reason):
    with pytest.raises(DataError) as caught:
        read_header(data, "some/photo.jpg")
    text = str(caught.value)
    assert text.startswith("some/photo.jpg: ") and check_text(text, "decoded")
    assert check_text(text, reason)
    assert "\nReplace or remove" in text


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("kept", [0.3, 0.7, 0.97])
@pytest.mark.parametrize("rows", [16, 200])
def test_a_truncated_image_raises_whatever_part_of_it_is_wanted(kind, kept, rows, decoder):
    data = _encode(_picture(200, 200), kind)
    broken = data[: int(len(data) * kept)]
    window = CropWindow(0, 0, rows, 200, 16, 32)
    with pytest.raises(DataError, match=r"^it: .*decoded: .+\nReplace"):
        _ours(broken, window, (16, 32), decoder)


def test_a_photo_with_its_tail_missing_raises_at_every_scale(photos, decoder):
    data = photos(3)[1]
    header = read_header(data, "it")
    for size in (header.height // 1, header.height // 2, header.height // 9):
        window = CropWindow(0, 0, header.height, header.width, size, size)
        with pytest.raises(DataError, match="truncated"):
            _ours(data[:-500], window, (size, size), decoder)


def test_bytes_after_the_end_of_the_image_do_no_harm(decoder):
    data = _encode(_picture(64, 64))
    window = CropWindow(0, 0, 64, 64, 60, 60)
    for variant in (data + b"\x00" * 30, data + b"appended by a camera"):
        assert _difference(_ours(variant, window, (60, 60), decoder), _reference(data, window, (60, 60)))[0] <= 2


def test_stray_bytes_before_the_end_marker_do_no_harm(decoder):
    data = _encode(_picture(64, 64))
    window = CropWindow(0, 0, 64, 64, 60, 60)
    stray = data[:-2] + b"\x12\x34\x56" + data[-2:]
    np.testing.assert_array_equal(_ours(stray, window, (60, 60), decoder), _ours(data, window, (60, 60), decoder))


def test_an_image_beyond_the_pixel_limit_is_refused():
    data = bytearray(_encode(_picture(8, 8)))
    at = read_header(bytes(data), "it").height_at
    data[at : at + 4] = struct.pack(">HH", 65000, 65000)
    with raises(DataError, "65000 x 65000 pixels"):
        read_header(bytes(data), "bomb.jpg")
    data[at : at + 4] = struct.pack(">HH", 0, 8)
    with pytest.raises(DataError, match="8 x 0 pixels"):
        read_header(bytes(data), "flat.jpg")


def test_a_missing_decoder_is_a_recipe_error_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    monkeypatch.setitem(sys.modules, "nvidia", None)
    with pytest.raises(RecipeError, match=r"(?s)nvimgcodec.*pip install 'nvidia-nvimgcodec-cu13>=0\.9'"):
        require_decoder("nvimgcodec")
    require_decoder("simplejpeg")
    require_decoder("pillow")


def test_decoding_in_a_thread_starts_no_other_threads(tmp_path):
    """In a process whose torch would use 4 intra-op threads: torch's own copy or flip of a crop starts them."""
    path = tmp_path / "photo.jpg"
    path.write_bytes(_encode(_picture(700, 900), quality=95))
    script = """
import os, sys, threading
import numpy as np, torch
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec, decode_crop
from paceline.data.transforms.image_io import read_header
torch.set_num_threads(4)
data = open(sys.argv[1], "rb").read()
header = read_header(data, "it")
out = np.empty((300, 300, 3), np.uint8)
def work():
    before = len(os.listdir("/proc/self/task"))
    for decoder in ("simplejpeg", "pillow"):
        for window in (CropWindow(10, 20, 590, 590, 300, 300), CropWindow(0, 0, 700, 900, 320, 411, 10, 50)):
            for flip in (False, True):
                decode_crop(data, SampleSpec("it", header, window, None, flip, decoder=decoder), out)
    print(len(os.listdir("/proc/self/task")) - before)
thread = threading.Thread(target=work); thread.start(); thread.join()
assert torch.get_num_threads() == 4
"""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts threads through /proc")
    run = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "0", run.stdout + run.stderr


def test_threads_do_not_disturb_each_others_pixels():
    jpegs = [_encode(_picture(100 + 7 * i, 120, seed=i)) for i in range(8)]
    windows = [CropWindow(3, 2, 90 + 7 * i, 100, 64, 64) for i in range(8)]
    alone = [_ours(jpeg, window, (64, 64), "simplejpeg") for jpeg, window in zip(jpegs, windows)]
    wrong: list[int] = []

    def work(first: int) -> None:
        for i in range(200):
            at = (first + i) % 8
            if not np.array_equal(_ours(jpegs[at], windows[at], (64, 64), "simplejpeg"), alone[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_measured_as_decoding_is_what_a_crop_decodes(decoder, monkeypatch):
    """At full scale and at half of it: the same decoder for the same rows."""
    asked = []
    for name in ("decode_region", "_rows_simplejpeg"):
        real = getattr(decode, name)
        monkeypatch.setattr(decode, name, lambda *what, name=name, real=real: asked.append((name, what)) or real(*what))
    data = _encode(_picture(90, 120))
    header, names = read_header(data, "it"), []
    for window in (CropWindow(10, 20, 60, 70, 60, 70), CropWindow(0, 0, 90, 120, 40, 50)):
        asked.clear()
        out = np.empty((window.resized_height, window.resized_width, 3), np.uint8)
        decode_crop(data, SampleSpec("it", header, window, None, False, decoder=decoder), out)
        decode_alone(data, SampleSpec("it", header, window, None, decoder=decoder))
        assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
        names += [name for name, _ in asked[::2]]
    rows, region = "_rows_simplejpeg", "decode_region"
    both = {"simplejpeg": [rows, rows], "nvimgcodec": [region, rows], "nvjpeg": [rows, rows], "pillow": []}
    assert names == both[decoder]


def test_rows_below_the_region_are_not_decoded(monkeypatch):
    seen: list[tuple[int, ...]] = []
    real = simplejpeg.decode_jpeg

    def watch(data, **options):
        seen.append(options["buffer"].shape)
        return real(data, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", watch)
    jpeg = _encode(_picture(400, 300))
    _ours(jpeg, CropWindow(20, 0, 80, 300, 60, 60), (60, 60), "simplejpeg")
    _ours(jpeg, CropWindow(0, 0, 400, 300, 60, 60), (60, 60), "simplejpeg")
    assert seen == [(102, 300, 3), (100, 75, 3)]
