"""What `--save-formats` names: answers in the files of other tools, to be looked at, corrected and trained on.

These files hold what is shown (--score-threshold, --classes, --max-detections), cut at the photo's edges; predictions.json holds all.
A format has one file for all photos, which grows with each (`joined`), or files of each photo (`own`); both lie in the folder of
the answers. Sources: the COCO format page (cocodataset.org), docs.ultralytics.com/datasets; those of label tools have theirs below.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, TypeAlias
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from PIL import Image

from paceline._utils.text import escape_line
from paceline.data.formats.annotations import polygon_area
from paceline.inference.results import ClassificationResult, DetectionResult, PredictionResult

Files: TypeAlias = "dict[str, str | bytes | Path]"  # name below the folder -> content; a Path: a link there


@dataclass(frozen=True)
class ResultLocation:
    """A photo among the answers."""

    picture: str  # name of its picture below the folder, its own alone, with the suffix .jpg
    file_name: str  # its path from the folder that all of the photos lie in
    photo: Path | None  # absolute; None: a frame of a video
    number: int  # from 1; where all photos have image ids, these

    @property
    def name(self) -> str:
        """Its own alone, without a suffix."""
        return self.picture.removesuffix(".jpg")


class OutputFormat:
    """The files of one tool. What is not overridden is empty."""

    joined = ""  # the file for all photos
    top = ""  # the folder of the photos' own files
    of_objects = True  # nothing for classes of whole photos
    of_masks = False  # for objects with masks alone
    of_files = False  # names the photos' own files, which a video has not

    def __init__(self, folder: Path, classes: Sequence[str], category_ids: Sequence[int], masks: bool) -> None:
        self.folder, self.classes, self.category_ids, self.masks = folder, classes, category_ids, masks
        self._rows = 0

    def head(self) -> str:
        """The beginning of the joined file."""
        return ""

    def add(self, result: DetectionResult, location: ResultLocation) -> str:
        """What the joined file has of a photo."""
        return ""

    def foot(self) -> str:
        """The end of the joined file."""
        return ""

    def between(self) -> str:
        """What separates a row of a JSON list from the one before it."""
        self._rows += 1
        return "\n" if self._rows == 1 else ",\n"

    def own(self, result: DetectionResult, location: ResultLocation) -> Files:
        """A photo's own files."""
        return {}

    def beside(self) -> Files:
        """Files that are there once."""
        return {}


class AnswersCsv(OutputFormat):
    """`answers.csv`: a row an object; of classes, a row for each of the best five."""

    joined, of_objects = "answers.csv", False

    def head(self) -> str:
        return _row("file", "number", "category_id", "name", "score", "left", "top", "width", "height")

    def add(self, result: PredictionResult, location: ResultLocation) -> str:
        file = location.file_name if location.photo is None else str(location.photo)
        if isinstance(result, ClassificationResult):
            rows = zip(result.class_ids, result.names, result.scores)
            return "".join(_row(file, n, *values[:2], f"{values[2]:.5f}") for n, values in enumerate(rows, 1))
        assert isinstance(result, DetectionResult)
        rows = zip(result.category_ids, result.names, result.scores, result.boxes_xywh.round(2).tolist())
        return "".join(_row(file, n, i, name, f"{score:.5f}", *box) for n, (i, name, score, box) in enumerate(rows, 1))


class CocoJson(OutputFormat):
    """`coco.json`: a data set of the photos, whose annotations have a score; masks are polygons."""

    joined = "coco.json"

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self._images: list[dict[str, object]] = []

    def head(self) -> str:
        return '{"annotations": ['

    def add(self, result: DetectionResult, location: ResultLocation) -> str:
        size = {"width": result.width, "height": result.height}
        self._images.append({"id": location.number, "file_name": location.file_name, **size})
        text = ""
        for i, (row, (_, _, w, h)) in enumerate(zip(result.to_coco(location.number), result.boxes_xywh)):
            separator = self.between()
            row |= {"id": self._rows, "area": float(w * h), "iscrowd": 0}
            if result.masks_rle is not None:
                row["segmentation"] = [points.ravel().round(2).tolist() for points in object_outlines(result, i)]
                row["area"] = int(result.mask(i).sum())
            text += separator + json.dumps(row)
        return text

    def foot(self) -> str:
        categories = [{"id": number, "name": name} for number, name in zip(self.category_ids, self.classes)]
        images = ",\n".join(map(json.dumps, self._images))
        return f'\n], "images": [\n{images}\n], "categories": {json.dumps(categories)}}}\n'


class YoloFolder(OutputFormat):
    """`yolo/`: data.yaml, links to the photos, and a label file each: boxes, or each mask's largest polygon, as fractions."""

    of_files, top = True, "yolo"

    def own(self, result: DetectionResult, location: ResultLocation) -> Files:
        assert location.photo is not None
        size, lines = np.array([result.width, result.height]), []
        for i, (class_id, box, score) in enumerate(zip(result.class_ids, result.boxes_xywh, result.scores)):
            values = np.concatenate(((box[:2] + box[2:] / 2) / size, box[2:] / size))
            if result.masks_rle is not None:
                values = (object_outlines(result, i)[0] / size).ravel()
            more = [f"{score:.5f}"] if self.top == "yolo-scores" else []
            lines.append(" ".join([str(class_id), *(f"{value:.6f}" for value in values), *more]) + "\n")
        image = f"{self.top}/images/{location.name}{location.photo.suffix}"
        return {image: location.photo, f"{self.top}/labels/{location.name}.txt": "".join(lines)}

    def beside(self) -> Files:
        import yaml  # here: most predictions do without

        facts = {"train": "images", "names": list(self.classes)}
        return {f"{self.top}/data.yaml": yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)}


class ScoredYoloFolder(YoloFolder):
    """As `YoloFolder`, in a folder `yolo-scores`, with the score at the end of each line: what Ultralytics' save_conf writes."""

    top = "yolo-scores"


class MaskPngs(OutputFormat):
    """`masks/`: a 16-bit PNG a photo; a pixel has the number of its object in answers.csv, the better above, 0 where there is none."""

    top, of_masks = "masks", True

    def own(self, result: DetectionResult, location: ResultLocation) -> Files:
        pixels = np.zeros((result.height, result.width), np.uint16)
        for i in reversed(range(len(result.scores))):
            pixels[result.mask(i)] = i + 1
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return {f"{self.top}/{location.name}.png": file.getvalue()}


def select_displayed(result: PredictionResult, above: float) -> PredictionResult:
    """Objects of at least this score, boxes cut at the photo's edges; those without any area there are left out."""
    if not isinstance(result, DetectionResult):
        return result
    edges = result.boxes_xyxy.clip(0, [result.width, result.height] * 2)
    boxes = np.concatenate((edges[:, :2], edges[:, 2:] - edges[:, :2]), 1)
    masked = np.ones(len(boxes), bool)
    if result.masks_rle is not None:
        masked = np.array([bool(result.mask(i).any()) for i in range(len(boxes))], bool)
    kept = (boxes[:, 2:] > 0).all(1) & masked & (np.array(result.scores) >= above)
    return replace(result, boxes_xywh=boxes)[kept]


def object_outlines(result: DetectionResult, i: int) -> list[np.ndarray]:
    """The polygons of object `i`, (p, 2) pixels, largest first: of its mask, or the corners of its box."""
    if result.masks_rle is not None:
        return trace_mask(result.mask(i))
    left, top, right, bottom = result.boxes_xyxy[i]
    return [np.array([[left, top], [right, top], [right, bottom], [left, bottom]])]


def _row(*values: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


# A mask's outlines as polygons, for tools in which people move their corners.
#
# A polygon has no holes, and a mask of several parts is several polygons. Points lie between pixels: a mask of the pixels 2 to 4 of
# a row reaches from 2 to 5. The contour that contourpy (which matplotlib draws with) finds cuts corners of pixels in half.

# Pixels by which an outline may leave the contour for the sake of fewer corners.
TOLERANCE = 0.5
# Parts below this share of the mask's largest are specks, which nobody wants to correct.
MIN_PART = 0.02


def trace_mask(mask: np.ndarray) -> list[np.ndarray]:
    """mask: (h, w) bool -> the outline of each part, (p, 2) x and y in pixels, p >= 3, largest first; [] of an empty mask."""
    from contourpy import FillType, contour_generator

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return []
    top, left = rows[0], columns[0]
    inside = np.pad(mask[top : rows[-1] + 1, left : columns[-1] + 1], 1).astype(np.float32)
    # OuterOffset: of each part its outer line first, then those of its holes.
    filled: Any = contour_generator(z=inside, fill_type=FillType.OuterOffset).filled(0.5, 2.0)
    parts, offsets = filled
    outlines = [points[: ends[1] - 1] for points, ends in zip(parts, offsets)]  # the last point is the first
    moved = np.array([left - 0.5, top - 0.5])
    outlines = [outline.astype(np.float64) + moved for outline in outlines]
    sizes = [polygon_area(outline.ravel().tolist()) for outline in outlines]
    order = sorted(range(len(sizes)), key=lambda part: -sizes[part])
    return [_simpler(outlines[part]) for part in order if sizes[part] >= MIN_PART * sizes[order[0]]]


def _simpler(points: np.ndarray) -> np.ndarray:
    """The corners without which a line would lie further than TOLERANCE from them (Douglas and Peucker 1973)."""
    far = int(np.argmax(((points - points[0]) ** 2).sum(1)))
    closed = np.concatenate((points, points[:1]))
    kept, waiting = {0, far}, [(0, far), (far, len(points))]
    while waiting:
        first, last = waiting.pop()
        if last - first < 2:
            continue
        way, between = closed[last] - closed[first], closed[first + 1 : last] - closed[first]
        beside = np.abs(way[0] * between[:, 1] - way[1] * between[:, 0]) / max(float(np.hypot(*way)), 1e-9)
        worst = first + 1 + int(np.argmax(beside))
        if beside[worst - first - 1] > TOLERANCE:
            kept.add(worst)
            waiting += [(first, worst), (worst, last)]
    return points if len(kept) < 3 else points[sorted(kept)]


# Answers as pre-annotations for LabelMe, Label Studio and CVAT, in which people correct them.
#
# Sources: labelme's `LabelFile` (labelme 5), labelstud.io/guide/predictions, docs.cvat.ai "CVAT for images 1.1".


class LabelMe(OutputFormat):
    """`labelme/`: a JSON a photo, which names the photo by its path from there. The score is the shape's description."""

    top, of_files = "labelme", True

    def own(self, result: DetectionResult, location: ResultLocation) -> Files:
        assert location.photo is not None
        name = f"{self.top}/{location.name}.json"
        shapes = []
        for i, (label, score) in enumerate(zip(result.names, result.scores)):
            parts = [[object_outlines(result, i)[0][[0, 2]]], object_outlines(result, i)][result.masks_rle is not None]
            for points in parts:
                shapes.append(
                    {
                        "label": label,
                        "points": points.round(2).tolist(),
                        "group_id": i + 1 if len(parts) > 1 else None,  # the parts of one object
                        "description": f"{score:.3f}",
                        "shape_type": "rectangle" if result.masks_rle is None else "polygon",
                        "flags": {},
                        "mask": None,
                    }
                )
        facts = {
            "version": "5.5.0",
            "flags": {},
            "shapes": shapes,
            "imagePath": os.path.relpath(location.photo, (self.folder / name).absolute().parent),
            "imageData": None,
            "imageHeight": result.height,
            "imageWidth": result.width,
        }
        return {name: json.dumps(facts, indent=1)}


class LabelStudio(OutputFormat):
    """`labelstudio.json`: a task a photo, with a prediction; `labelstudio.xml`: the labels, for the project's settings.

    Photos are named as local files, from the root on: Label Studio serves them with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true
    and LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=/. Coordinates are percents of the photo.
    """

    joined, of_files = "labelstudio.json", True

    def head(self) -> str:
        return "["

    def add(self, result: DetectionResult, location: ResultLocation) -> str:
        assert location.photo is not None
        kind, size = "polygonlabels" if self.masks else "rectanglelabels", np.array([result.width, result.height])
        regions = []
        for i, (label, score, box) in enumerate(zip(result.names, result.scores, result.boxes_xywh)):
            left, top, width, height = (100 * box / np.tile(size, 2)).round(4).tolist()
            value = {"x": left, "y": top, "width": width, "height": height, "rotation": 0}
            if self.masks:
                value = {"points": (100 * object_outlines(result, i)[0] / size).round(4).tolist(), "closed": True}
            regions.append(
                {
                    "id": f"{location.number}-{i + 1}",
                    "type": kind,
                    "from_name": "label",
                    "to_name": "image",
                    "original_width": result.width,
                    "original_height": result.height,
                    "image_rotation": 0,
                    "score": round(score, 5),
                    "value": {**value, kind: [label]},
                }
            )
        address = "/data/local-files/?d=" + quote(os.fsencode(location.photo).lstrip(b"/"))
        least = min((region["score"] for region in regions), default=0.0)  # tasks sorted by it begin with doubtful ones
        task = {
            "data": {"image": address},
            "predictions": [{"model_version": "paceline", "score": least, "result": regions}],
        }
        return self.between() + json.dumps(task)

    def foot(self) -> str:
        return "\n]\n"

    def beside(self) -> Files:
        kind = "PolygonLabels" if self.masks else "RectangleLabels"
        rows = "".join(f"    <Label value={quoteattr(escape_line(name))}/>\n" for name in self.classes)
        body = f'  <Image name="image" value="$image"/>\n  <{kind} name="label" toName="image">\n{rows}  </{kind}>\n'
        return {"labelstudio.xml": f"<View>\n{body}</View>\n"}


class CvatXml(OutputFormat):
    """`cvat.xml`: CVAT for images 1.1. Photos go by their paths from the folder that all of them lie in."""

    joined = "cvat.xml"

    def head(self) -> str:
        labels = "".join(f"<label><name>{escape(escape_line(name))}</name></label>" for name in self.classes)
        meta = f"<meta><task><labels>{labels}</labels></task></meta>"
        return f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n{meta}\n'

    def add(self, result: DetectionResult, location: ResultLocation) -> str:
        shapes = []
        for i, label in enumerate(result.names):
            facts = f'label={quoteattr(escape_line(label))} source="auto" occluded="0" z_order="0"'
            if result.masks_rle is None:
                left, top, right, bottom = result.boxes_xyxy[i].round(2).tolist()
                shapes.append(f'<box {facts} xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}"/>\n')
                continue
            parts = object_outlines(result, i)
            group = f' group_id="{i + 1}"' if len(parts) > 1 else ""  # the parts of one object
            for points in parts:
                text = ";".join(f"{x:.2f},{y:.2f}" for x, y in points)
                shapes.append(f'<polygon {facts} points="{text}"{group}/>\n')
        name = quoteattr(escape_line(PurePath(location.file_name).as_posix()))
        head = f'<image id="{location.number}" name={name} width="{result.width}" height="{result.height}">'
        return f"{head}\n{''.join(shapes)}</image>\n"

    def foot(self) -> str:
        return "</annotations>\n"
