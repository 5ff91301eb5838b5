"""Predict with an ONNX file that `paceline export` wrote. Requires only numpy, Pillow, and onnxruntime.

    python MODEL_predict.py IMAGE... [--score-threshold 0.3]

    model = ONNXModel("MODEL.onnx")
    for result in model("cat.jpg"): print(result["name"], result["score"], result.get("box"))

You can copy and change this program. Images are resized as in the evaluation of the model: a JPEG that is more than twice as large is
decoded at a half (a quarter, an eighth), and the rest is a triangle filter in integers.
Notation: h, w size of an image   H, W size of the input   S side of a mask
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# How a camera was held, as EXIF has it, and what turns the photo upright.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
ORIENTATION = 0x0112


class ONNXModel:
    """An opened file: `model(photo)` is what is found in a photo, best first."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        """options: of onnxruntime.InferenceSession; without providers it is the CPU's."""
        import onnxruntime

        self.session = onnxruntime.InferenceSession(path, **{"providers": ["CPUExecutionProvider"], **options})
        card = json.loads(self.session.get_modelmeta().custom_metadata_map["paceline"])
        self.classes, model = card["classes"], card["recipe"]["model"]
        self.rules = {**model.get("detect", {}), **model.get("parity", {})}
        self.facts = {**card["graph"], "task": card["recipe"]["task"], "input": card["recipe"]["input"]}
        self.names = [one.name for one in self.session.get_inputs()]

    def __call__(self, photo: str | Path | bytes) -> list[dict[str, Any]]:
        """A photo's path or encoded bytes -> for each object its name, score and box (left, top, right, bottom in the photo's
        pixels), and where the model has masks its mask, (h, w) bool; of a classifier the five best names and scores."""
        data = photo if isinstance(photo, bytes) else Path(photo).read_bytes()
        pixels, size, (h, w) = to_input(data, self.facts)
        images = pixels[None]
        if self.facts["layout"].startswith("NCHW"):
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32) / np.float32(255)
        count = self.facts["batch"] or 1
        arguments = np.repeat(images, count, axis=0), np.array([size] * count, np.int64)
        outputs: list[Any] = [part[0] for part in self.session.run(None, dict(zip(self.names, arguments)))]  # type: ignore[index]
        if len(outputs) == 1:
            best = np.argsort(-outputs[0], kind="stable")[:5]
            return [{"name": self.classes[one], "score": float(outputs[0][one])} for one in best]
        results = []
        boxes, scores, labels = outputs[:3]
        boxes = (boxes / np.array([size[1], size[0]] * 2, np.float32)).astype(np.float64) * [w, h, w, h]
        for location in np.flatnonzero(labels >= 0):
            one = {"name": self.classes[labels[location]], "score": float(scores[location])}
            one["box"] = boxes[location] + [0, 0, 1, 1] if self.rules.get("plus_one") else boxes[location]
            if len(outputs) > 3:
                one["mask"] = paste_mask(
                    outputs[3][location], boxes[location], h, w, self.rules["mask_threshold"], self.rules["mask_paste"]
                )
            results.append(one)
        return results


# No PostScript among them, for which Pillow would start another program.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "WEBP", "TIFF", "GIF")


def to_input(data: bytes, facts: dict[str, Any]) -> tuple[np.ndarray, tuple[int, int], tuple[int, int]]:
    """An encoded photo -> (H, W, 3) uint8, height and width of the photo in it, and h, w of the photo."""
    rules, shape = facts["input"], (facts["height"], facts["width"])
    law = {"tensorflow": "tensorflow-photo"}.get(rules.get("resize", ""), rules.get("resize", "bilinear-antialias"))
    picture = Image.open(io.BytesIO(data), formats=FORMATS)
    jpeg, known = picture.format in ("JPEG", "MPO"), picture.format in ("JPEG", "MPO", "PNG", "WEBP")
    turn = picture.getexif().get(ORIENTATION, 1) if rules["exif"] == "apply" and known else 1
    stored = picture.size
    w, h = stored[::-1] if turn >= 5 else stored
    any_shape = shape == (None, None)
    (rows, columns), skip = fit_size(h, w, rules, (1 << 30, 1 << 30) if any_shape else shape, facts["task"])
    if any_shape:  # the first of the file's list that holds the image, or the next multiple
        step = rules["size_divisor"]
        rounded = -(-rows // step) * step, -(-columns // step) * step
        shape = next((tuple(one) for one in facts["shapes"] if rows <= one[0] and columns <= one[1]), rounded)
    scale = 1
    if jpeg and law == "bilinear-antialias":
        scale = max(one for one in (1, 2, 4, 8) if one <= max(1, min(h // rows, w // columns)))
        picture.draft(None, (stored[0] // scale, stored[1] // scale))
    plain = jpeg and rules["decoder"] != "pillow" and picture.mode in ("L", "RGB") and data[-2:] == b"\xff\xd9"
    picture = to_rgb(picture)
    out = np.zeros((*shape, 3), np.uint8)
    high, wide = min(rows - skip[0], shape[0]), min(columns - skip[1], shape[1])
    part = slice(skip[0], skip[0] + high), slice(skip[1], skip[1] + wide)
    if law == "bilinear-antialias" and not (plain and scale == 1):  # by Pillow, from between pixels where they are scaled
        left_over = picture.height - stored[1] / scale, picture.width - stored[0] / scale
        picture = rotate(picture, turn)
        y, x = _rim(turn, left_over)
        down, across = h / scale / rows, w / scale / columns
        top, left = y + skip[0] * down, x + skip[1] * across
        box = left, top, min(left + wide * across, picture.width), min(top + high * down, picture.height)
        result = np.asarray(picture.resize((wide, high), Image.Resampling.BILINEAR, box=box))
    elif law == "tensorflow-photo":
        result = resize_tensorflow(np.asarray(rotate(picture, turn)), rows, columns)[part]
    else:
        pixels = np.asarray(rotate(picture, turn))
        antialias = law == "bilinear-antialias"
        result = resize_axis(resize_axis(pixels, columns, 1, antialias), rows, 0, antialias)[part]
    out[:high, :wide] = result
    return out, (high, wide) if facts["task"] == "instance-segmentation" else shape, (h, w)


def fit_size(
    h: int, w: int, rules: dict[str, Any], shape: tuple[int, int], task: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """-> the size that the whole photo is resized to, and the rows and columns of it that are above and before the input."""
    if task == "classification":
        short, size = rules["eval_resize_size"], rules["eval_crop_size"]
        whole = (int(short * h / w), short) if w <= h else (short, int(short * w / h))
        return whole, (round((whole[0] - size) / 2.0), round((whole[1] - size) / 2.0))
    if task == "detection":
        return shape, (0, 0)
    scale = min(rules["min_size"][-1] / min(h, w), rules["max_size"] / max(h, w))
    if h * scale >= shape[0] + 1 or w * scale >= shape[1] + 1:  # a portrait in a landscape's input
        scale = min(shape[0] / h, shape[1] / w)
    whole = int if rules["parity"]["side_rounding"] == "cut" else round
    return (min(shape[0], max(1, whole(h * scale))), min(shape[1], max(1, whole(w * scale)))), (0, 0)


def to_rgb(picture: Image.Image) -> Image.Image:
    """8 bits; of values with 16 the upper eight."""
    if picture.mode.startswith("I"):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if "transparency" in picture.info:
        picture = picture.copy()
        del picture.info["transparency"]
    return picture.convert("RGB")


def rotate(picture: Image.Image, turn: int) -> Image.Image:
    """The photo as it is shown."""
    return picture.transpose(TURNS[turn]) if turn in TURNS else picture


def _rim(turn: int, left_over: tuple[float, float]) -> tuple[float, float]:
    """How far a turned photo begins inside its scaled picture, whose last row and column are cut: y, x."""
    down, across = left_over[::-1] if turn >= 5 else left_over
    return down if turn in (3, 4, 7, 8) else 0.0, across if turn in (2, 3, 6, 7) else 0.0


def resize_axis(pixels: np.ndarray, count: int, axis: int, antialias: bool) -> np.ndarray:
    """Resize one axis of (h, w, 3) uint8 to `count`, in whole numbers as torch does: weights of 16 bits, each axis rounded."""
    size = pixels.shape[axis]
    if size == count:
        return pixels
    scale = size / count
    middle = scale * (np.arange(count) + 0.5)
    if antialias:
        reach = max(scale, 1.0)
        first = np.maximum((middle - reach + 0.5).astype(np.int64), 0)
        last = np.minimum((middle + reach + 0.5).astype(np.int64), size)
        taps = np.arange(int((last - first).max()))
        weights = np.maximum(1 - np.abs((taps + first[:, None] - middle[:, None] + 0.5) / reach), 0)
        weights *= taps < (last - first)[:, None]
        weights /= weights.sum(axis=1, keepdims=True)
    else:
        location = np.maximum(middle - 0.5, 0)
        first = np.minimum(location.astype(np.int64), size - 1)
        share = location - first
        weights = np.where((first < size - 1)[:, None], np.stack((1 - share, share), axis=1), [1.0, 0.0])
    bits = next(bits for bits in range(23) if bits == 22 or int(0.5 + weights.max() * (1 << (bits + 1))) >= 1 << 15)
    whole = (0.5 + weights * (1 << bits)).astype(np.int32)
    lines = np.moveaxis(pixels, axis, 0)
    total = np.full((count, *lines.shape[1:]), 1 << (bits - 1), np.int32)
    for tap in range(whole.shape[1]):
        total += whole[:, tap, None, None] * lines[np.minimum(first + tap, size - 1)]
    return np.moveaxis(np.clip(total >> bits, 0, 255).astype(np.uint8), 0, axis)


def resize_tensorflow(pixels: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Output pixel i lies at i * size / count, between two pixels, in float32."""
    (y, below, down), (x, behind, across) = (
        _between(*one) for one in ((pixels.shape[0], rows), (pixels.shape[1], columns))
    )
    mixed = []
    for line in (pixels[y], pixels[below]):
        left, right = line[:, x].astype(np.float32), line[:, behind].astype(np.float32)
        mixed.append(left + (right - left) * across[None, :, None])
    return np.rint(mixed[0] + (mixed[1] - mixed[0]) * down[:, None, None]).astype(np.uint8)


def _between(size: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    locations = np.arange(count) * size / count
    before = np.floor(locations).astype(np.int64)
    return before, np.minimum(before + 1, size - 1), (locations - before).astype(np.float32)


def paste_mask(mask: np.ndarray, box: np.ndarray, h: int, w: int, above: float, law: str) -> np.ndarray:
    """(S, S) probabilities -> (h, w) bool: where they are above `above`, resized to the box (left, top, right, bottom)."""
    side = mask.shape[0] + 2
    padded, edges = np.pad(mask.astype(np.float32), 1), np.asarray(box, np.float32)
    half = (edges[2:] - edges[:2]) * np.float32(0.5) * np.float32(side / (side - 2))
    middle = (edges[2:] + edges[:2]) * np.float32(0.5)
    corners = np.concatenate((middle - half, middle + half))
    left, top, right, bottom = (np.rint(corners) if law == "gluoncv" else np.trunc(corners)).astype(int).tolist()
    rows, columns = max(bottom - top + 1, 1), max(right - left + 1, 1)
    out = np.zeros((h, w), bool)
    y, x = slice(max(top, 0), min(bottom + 1, h)), slice(max(left, 0), min(right + 1, w))
    if y.start < y.stop and x.start < x.stop:
        down = _weights(side, rows, y.start - top, y.stop - top, law)
        across = _weights(side, columns, x.start - left, x.stop - left, law)
        out[y, x] = down @ padded @ across.T > above
    return out


def _weights(side: int, size: int, first: int, last: int, law: str) -> np.ndarray:
    """Of `side` values stretched over `size` pixels, in pixels first to last - 1: (pixels, side) float32."""
    step = side / size
    locations = (np.arange(first, last) + 0.5) * step - 0.5
    if law == "gluoncv":  # smoothed where a mask is made smaller
        weights = np.maximum(1 - np.abs(np.arange(side) - locations[:, None]) / max(step, 1), 0)
        return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return np.maximum(1 - np.abs(np.arange(side) - np.clip(locations, 0, side - 1)[:, None]), 0).astype(np.float32)


def main(words: list[str]) -> int:
    """Print what is found in each photo; 1 where one of them cannot be read."""
    least = 0.3
    if "--score-threshold" in words[:-1]:
        at = words.index("--score-threshold")
        least, words = float(words[at + 1]), words[:at] + words[at + 2 :]
    if not words or words[0].startswith("-"):
        print(__doc__)
        return 2
    model, code = ONNXModel(Path(__file__).with_name("MODEL.onnx")), 0
    for photo in words:
        try:
            answer = model(photo)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
            print(f"{photo}: not a readable image ({problem})", file=sys.stderr)
            code = 1
            continue
        print(photo)
        shown = [one for one in answer if one["score"] >= least or "box" not in one]
        for one in shown:
            box = "  ".join(f"{edge:.1f}" for edge in one.get("box", ()))
            area = f"  mask {int(one['mask'].sum()):,} px" if "mask" in one else ""
            print(f"  {one['name']}  {one['score']:.3f}  {box}{area}".rstrip())
        if not shown:
            print(f"  no object with a score of at least {least:g}; --score-threshold changes this limit")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
