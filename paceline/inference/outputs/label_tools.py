"""Answers as pre-annotations for LabelMe, Label Studio and CVAT, in which people correct them.

Sources: labelme's `LabelFile` (labelme 5), labelstud.io/guide/predictions, docs.cvat.ai "CVAT for images 1.1".
"""

from __future__ import annotations

import json
import os
from pathlib import PurePath
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from paceline._utils.text import escape_line
from paceline.inference.outputs.formats import Files, OutputFormat, ResultLocation, object_outlines
from paceline.inference.results import DetectionResult


class LabelMe(OutputFormat):
    """`labelme/`: a JSON a photo, which names the photo by its path from there. The score is the shape's description."""

    top, of_files = "labelme", True

    def own(self, result: DetectionResult, location: ResultLocation) -> Files:
        assert location.photo is not None
        name = f"{self.top}/{location.name}.json"
        shapes = []
        for i, (label, score) in enumerate(zip(result.names, result.scores)):
            parts = [[object_outlines(result, i)[0][[0, 2]]], object_outlines(result, i)][result.masks is not None]
            for points in parts:
                shapes.append(
                    {
                        "label": label,
                        "points": points.round(2).tolist(),
                        "group_id": i + 1 if len(parts) > 1 else None,  # the parts of one object
                        "description": f"{score:.3f}",
                        "shape_type": "rectangle" if result.masks is None else "polygon",
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
        for i, (label, score, box) in enumerate(zip(result.names, result.scores, result.boxes)):
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
            if result.masks is None:
                left, top, right, bottom = (result.boxes[i] + (0, 0, *result.boxes[i, :2])).round(2).tolist()
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
