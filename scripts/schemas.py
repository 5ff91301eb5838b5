"""Writes docs/schemas/: JSON Schemas of what paceline writes for other programs, from its own dataclasses and tables.

    scripts/schemas.py        after a change of a field; tests/test_schemas.py compares what lies there with this, and with real files

pydantic turns dataclasses into schemas; their bounds (config/constraints.py) and the texts of their fields, which are flags' help, are
added here. What is promised of them stands in docs/reference/file-schemas.md.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from paceline.config import constraints
from paceline.config import run as run_record
from paceline.config.constraints import get_help_texts
from paceline.config.plan import BatchPlan
from paceline.config.recipe import Recipe
from paceline.config.run import FORMAT, NEEDED, RunOptions
from paceline.config.system import System
from paceline.distributed.comm.exit_code import EXIT_CODES
from paceline.models.registry import WORKLOADS
from paceline.training.logging.events import COMMON, SCHEMA

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"
# The first number changes where readers of before may fail, the second with each addition; a run.json's first is its `format`.
VERSIONS = {"recipe": "1.0", "run": "1.0", "events": "1.0", "predictions": "1.0"}
KEYWORDS = {
    constraints.Gt: "exclusiveMinimum",
    constraints.Ge: "minimum",
    constraints.Lt: "exclusiveMaximum",
    constraints.Le: "maximum",
    constraints.MultipleOf: "multipleOf",
    constraints.MinLen: "minItems",
}
Schema = dict[str, Any]
STRING, BOOL, INT, OBJECT = ({"type": kind} for kind in ("string", "boolean", "integer", "object"))
STRINGS: Schema = {"type": "array", "items": STRING}
# JSON has no number for these three (training/logging/events.py).
NUMBER: Schema = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
NUMBERS: Schema = {"type": "object", "additionalProperties": NUMBER}
KINDS = {
    "number": NUMBER,
    "int": INT,
    "str": STRING,
    "dict": OBJECT,
    int: INT,
    str: STRING,
    dict: OBJECT,
    list: {"type": "array"},
}
# Facts that an event may have beside those that SCHEMA requires; training/logging/events.py says what each means.
MAY: dict[str, Schema] = {
    "train": {
        **dict.fromkeys(("flop_per_second", "gradient_norm", "update_ratio", "gradient_spike"), NUMBER),
        **dict.fromkeys(("rpn_acc", "rpn_l1", "rcnn_acc", "rcnn_l1", "mask_acc", "mask_fg_acc"), NUMBER),
        **dict.fromkeys(("peak_memory", "slowest_rank", "skipped_steps", "recompilations", "late_captures"), INT),
        **dict.fromkeys(("step_seconds", "gradient_norms", "update_ratios", "approximated"), NUMBERS),
        "rank_seconds": {"type": "array", "items": NUMBER},
    },
    "eval": {**dict.fromkeys(("eval_parts", "best_f1", "approximated"), NUMBERS), "fold": STRING, "discarded_steps": INT},
    "warm_up": {"peak_memory": INT},
    "resume": {"after": STRING},
    "end": {
        **dict.fromkeys(("discarded_steps", "evaluations_since_best", "intervals_step"), INT),
        "status": {"enum": list(EXIT_CODES)},
        "best": NUMBERS,
        "reason": STRING,
        "intervals": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2},
        },
        "joules": NUMBER,
        "joules_by": STRINGS,
        "mirror": OBJECT,
    },
}
# Names that a network or a metric chooses: parts of the loss, and what an evaluation found.
NAMED = {"train": {"^loss_": NUMBER}, "eval": {r"^(top|box_a|mask_a)": NUMBER}}


def _add_bounds() -> None:
    for kind, keyword in KEYWORDS.items():

        def schema(self: Any, core: Any, handler: Any, keyword: str = keyword) -> Schema:
            (limit,) = vars(self).values()
            return handler(core) | ({} if math.isinf(limit) else {keyword: limit})

        vars_of: Any = kind
        vars_of.__get_pydantic_json_schema__ = schema


class _Untitled(GenerateJsonSchema):
    """Without a title for each field, which is its name again."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def described(kind: type) -> dict[str, str]:
    """Field -> its Help, or the comment on its line, those of the classes below it included."""
    found = dict(get_help_texts(kind))
    for one in reversed(kind.__mro__):
        if is_dataclass(one):
            found |= dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(one), flags=re.M))
    return found


def parts(value: Any) -> dict[str, type]:
    """Name of a class -> the class, for a dataclass and all that its fields hold."""
    found = {type(value).__name__: type(value)}
    for entry in fields(value):
        if is_dataclass(inner := getattr(value, entry.name)):
            found |= parts(inner)
    return found


def of_dataclass(hint: Any, template: Any, more: Mapping[str, Schema] = {}) -> tuple[Schema, Schema]:
    """-> (the schema of a dataclass, those of its parts by name).

    template  one of it, whose fields' classes are known
    more      for some of its fields, what stands in their place
    """
    schema = TypeAdapter(hint).json_schema(schema_generator=_Untitled, ref_template="#/$defs/{model}")
    defs = schema.pop("$defs", {})
    classes = parts(template)
    schema["title"] = type(template).__name__
    for name, one in {**defs, type(template).__name__: schema}.items():
        one["description"] = _about(classes[name])
        for field, text in described(classes[name]).items():
            one["properties"][field].setdefault("description", text)
    schema["properties"] |= {name: {**schema["properties"][name], **one} for name, one in more.items()}
    return schema, defs


def recipe() -> tuple[Schema, Schema]:
    """A recipe: one of our workloads, or one of somebody's own, whose model and input are theirs."""
    choices, defs = [], {}
    for task, workload in WORKLOADS.items():
        hint = Recipe[type(workload.model), type(workload.input)]  # pyright: ignore[reportInvalidTypeArguments]
        template = Recipe(task=task, model=workload.model, input=workload.input)
        schema, inner = of_dataclass(hint, template, {"task": {"const": task}})
        defs |= {**inner, f"Recipe_{task}": schema}
        choices.append({"$ref": f"#/$defs/Recipe_{task}"})
    own = json.loads(json.dumps(schema))
    own["properties"] |= {"model": OBJECT, "input": OBJECT, "task": {"type": "string", "pattern": r"\.py:\w+$"}}
    return {"oneOf": [*choices, {"$ref": "#/$defs/Recipe_of_a_file"}]}, {**defs, "Recipe_of_a_file": own}


def run() -> tuple[Schema, Schema]:
    """RUN/run.json."""
    asked, defs = recipe()
    for name, hint, template in (("System", System, System()), ("Options", RunOptions, RunOptions())):
        schema, inner = of_dataclass(hint, template)
        defs |= {**inner, name: schema}
    plan = TypeAdapter(BatchPlan).json_schema(schema_generator=_Untitled)
    plan["description"] = _about(BatchPlan)
    for name, text in described(BatchPlan).items():
        plan["properties"][name].setdefault("description", text)
    defs |= plan.pop("$defs", {}) | {"Plan": plan, "Recipe": asked}
    of_card = {"step", "metrics", "best_f1", "run", "graph", "color_order", "averaged"}
    known = {name: KINDS[kind] for name, kind in run_record.KINDS.items() if name not in of_card}
    known |= {name: {"$ref": f"#/$defs/{name.title()}"} for name in ("recipe", "system", "plan", "options")}
    known |= {
        "format": {"const": FORMAT},
        "classes": STRINGS,
        "versions": {"type": "object", "additionalProperties": STRING},
        "threads": {"type": "object", "additionalProperties": INT},
        "git_commit": STRING,
        "launcher": STRING,
        "host": OBJECT,
        "memory_estimate": OBJECT,
        "started": {"type": "string", "format": "date-time"},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    }
    return {"type": "object", "properties": known, "required": [*NEEDED, "sha256"]}, defs


def events() -> tuple[Schema, Schema]:
    """A line of RUN/events.jsonl."""
    defs = {}
    for kind, required in SCHEMA.items():
        needed = {**COMMON, **required}
        known = {name: KINDS[what] for name, what in needed.items()} | MAY.get(kind, {})
        known |= {"event": {"const": kind}, "crc": {"type": "string", "pattern": "^[0-9a-f]{8}$"}}
        defs[kind] = {"type": "object", "properties": known, "required": [*needed, "crc"]}
        if kind in NAMED:
            defs[kind]["patternProperties"] = NAMED[kind]
    return {"oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in SCHEMA]}, defs


def predictions() -> tuple[Schema, Schema]:
    """predictions.json of `paceline predict`."""
    share = {"type": "number", "minimum": 0, "maximum": 1}
    box = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}
    runs = _object(
        {"size": {"type": "array", "items": INT, "minItems": 2, "maxItems": 2}, "counts": STRING}, ["size", "counts"]
    )
    detection = {
        "category_id": _said(INT, "id of the class in the training annotations, such as 1 to 90 for COCO"),
        "name": _said(STRING, "class name"),
        "bbox": _said(box, "left, top, width, and height in pixels of the image; the box can extend beyond the image"),
        "score": _said(share, "score from 0 to 1"),
        "segmentation": _said(
            runs,
            "for segmentation: mask in COCO's compressed run-length encoding, with `size` (height and width) and `counts`",
        ),
    }
    photo = {
        "file": _said(STRING, "path of the image, as it was passed"),
        "annotated_image": _said({"type": ["string", "null"]}, "path of the annotated image in the output folder, or null"),
        "files": _said(STRINGS, "files that `--save-formats` wrote for this image"),
        "image_id": _said(INT, "id in the annotations, if it is known"),
        "frame": _said(INT, "for a video: number of the frame, from 0"),
        "seconds": _said({"type": "number"}, "for a video: time of the frame"),
    }
    found = {"type": "array", "items": {"$ref": "#/$defs/detection"}}
    objects = {
        "width": _said(INT, "for detection and segmentation: width in pixels"),
        "height": _said(INT, "for detection and segmentation: height in pixels"),
        "detections": _said(found, "for detection and segmentation: all detections, best first"),
    }
    best = {
        "classes": _said(
            {"type": "array", "items": INT}, "for classification: indices of the five most likely classes, best first"
        ),
        "names": _said(STRINGS, "for classification: their names"),
        "scores": _said({"type": "array", "items": share}, "for classification: their probabilities"),
    }
    reason = {"file": _said(STRING, "path of the image"), "reason": _said(STRING, "why it was not read")}
    defs = {
        "detection": _object(detection, [name for name in detection if name != "segmentation"]),
        "objects": _object({**photo, **objects}, ["file", "annotated_image", *objects]),
        "best classes": _object({**photo, **best}, ["file", "annotated_image", *best]),
        "skipped": _object(reason, ["file", "reason"]),
    }
    answer = {"oneOf": [{"$ref": "#/$defs/objects"}, {"$ref": "#/$defs/best classes"}]}
    whole = {
        "paceline": _said({"const": "predictions"}, "`predictions`, which identifies the file"),
        "run": _said(STRING, "run folder or file of the model"),
        "checkpoint": _said(STRING, "checkpoint of the run"),
        "classes": _said(STRINGS, "class names, by class index"),
        "coco_results": _said(BOOL, "true if `coco_results.json` was written too"),
        "files": _said(STRINGS, "files that `--save-formats` wrote for all images together"),
        "images": _said({"type": "array", "items": answer}, "one entry per image or video frame"),
        "skipped": _said({"type": "array", "items": {"$ref": "#/$defs/skipped"}}, "images without predictions"),
    }
    return _object(whole, [name for name in whole if name != "files"]), defs


def _said(schema: Schema, description: str) -> Schema:
    """Add a description to a schema."""
    return {**schema, "description": description}


def _about(documented: object) -> str:
    """A docstring without its list of attributes, which the schema's properties describe."""
    return inspect.cleandoc(documented.__doc__ or "").partition("\n\nAttributes:")[0]


def _object(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def written() -> dict[str, str]:
    """File -> its text."""
    _add_bounds()
    texts = {}
    for make in (recipe, run, events, predictions):
        name, (schema, defs) = make.__name__, make()
        head = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:paceline:{name}:{VERSIONS[name]}",
            "title": _about(make),
        }
        texts[f"{name}.schema.json"] = json.dumps({**head, **schema, "$defs": defs}, indent=1) + "\n"
    return texts


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in written().items():
        (FOLDER / file).write_text(text)
