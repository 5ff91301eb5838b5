"""An evaluation as a table for people: COCO's numbers side by side, and each class with its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline._utils.formatting import format_metric, format_metric_name
from paceline._utils.text import shorten

if TYPE_CHECKING:
    from paceline.models.metrics.bootstrap import Interval
    from paceline.models.task import EvalResult

# Of more classes than these only the worst and the best are printed; --json has all.
MAX_CLASSES, SHOWN_AT_EACH_END = 100, 10
NAME_WIDTH = 28
TITLES = {
    "ap": "AP", "ap50": "AP50", "ar100": "AR100", "mask_ap": "mask AP", "mask_ap50": "AP50", "top1": "top1", "top5": "top5",
}  # fmt: skip


def evaluation_record(result: EvalResult, own: Mapping[str, float], ends: Mapping[str, Interval]) -> dict[str, Any]:
    """What --json prints; own: metrics of the run that an exported graph is of; ends: of 95 percent intervals."""
    results = {"images": result.images, **result.metrics}
    more = {"approximated": result.approximated, "best_f1": result.best_f1, "run_metrics": own, "intervals": ends}
    return {
        **results,
        **{name: dict(one) for name, one in more.items() if one},
        "per_class": class_metrics(result.predictions),
    }


def format_evaluation(result: EvalResult, own: Mapping[str, float] = {}, ends: Mapping[str, Interval] = {}) -> list[str]:
    """Lines of at most 80 columns (long class names are cut); own, ends: as in `evaluation_record`."""
    lines = [*_metrics(result.metrics, ends), *_best_f1(result.best_f1), *_classes(result.predictions)]
    return lines + (["", "  for comparison, the run on its own validation images:", *_metrics(own, {})] if own else [])


def _best_f1(best: Mapping[str, float]) -> list[str]:
    """The threshold with the best F1, in two lines."""
    if not best:
        return []
    shares = ", ".join(f"{name} {best[name]:.3f}" for name in ("precision", "recall"))
    return [
        f"  best F1 {best['f1']:.3f} at score {best['threshold']:g} ({shares}; boxes, IoU {best['iou']:g}),",
        "  a threshold chosen on these images; expect a lower F1 on other images",
    ]


def _metrics(metrics: Mapping[str, float], ends: Mapping[str, Interval]) -> list[str]:
    """One metric a line, and its interval; boxes and masks side by side where both were scored."""
    boxes = [name for name in metrics if name.startswith("box_")]
    others = [name for name in metrics if not name.startswith(("box_", "mask_"))]
    masks = {name.replace("mask_", "box_", 1): name for name in metrics if name.startswith("mask_")}
    lines = [f"  {'':<14} {'box':>8}" + (f"{'':>16} {'mask':>8}" if masks else "")] if boxes else []
    for name in boxes:
        cells = [_cell(key, metrics[key], ends) for key in (name, masks.get(name)) if key]
        lines.append(f"  {format_metric_name(name).removeprefix('box '):<14} " + " ".join(cells).rstrip())
    lines += [f"  {format_metric_name(name):<14} {_cell(name, metrics[name], ends)}".rstrip() for name in others]
    return [*lines, "  in brackets: 95% confidence intervals"] if ends else lines


def _cell(name: str, value: float, ends: Mapping[str, Interval]) -> str:
    low, high = (format_metric(name, end).removesuffix(" %") for end in ends[name]) if name in ends else ("", "")
    return f"{format_metric(name, value):>8} {f'[{low}, {high}]' if low else '':<15}"


def class_metrics(predictions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was found of each class, in class order.

    Of boxes name, objects, ap, ap50, ar100 (and mask_ap, mask_ap50; -1 without objects); of photos name, photos, top1, top5.
    """
    if predictions.get("kind") != "classification":
        return list(predictions.get("per_class", ()))
    counts = [[0, 0, 0] for _ in predictions["classes"]]
    for image in predictions["images"]:
        best = [answer["class"] for answer in image["top5"]]
        mine = counts[image["label"]]
        mine[0] += 1
        mine[1] += best[:1] == [image["label"]]
        mine[2] += image["label"] in best
    return [
        {
            "name": name,
            "photos": photos,
            **({"top1": top1 / photos, "top5": top5 / photos} if photos else {"top1": -1, "top5": -1}),
        }
        for name, (photos, top1, top5) in zip(predictions["classes"], counts)
    ]


def _classes(predictions: Mapping[str, Any]) -> list[str]:
    classes = class_metrics(predictions)
    if not classes:
        return []
    keys = [name for name in TITLES if name in classes[0]]
    count = "photos" if "photos" in classes[0] else "objects"
    head = f"  {'class':<{NAME_WIDTH}} {'images' if count == 'photos' else count:>8}" + "".join(
        f" {TITLES[key]:>7}" for key in keys
    )
    rows = []
    for entry in classes:
        name = f"{shorten(entry['name'], NAME_WIDTH):<{NAME_WIDTH}}"
        points = "".join(f" {_points(entry[key]):>7}" for key in keys)
        rows.append((entry[keys[0]], f"  {name} {entry[count]:>8,}{points}"))
    return ["", head, *_shown(rows)]


def _shown(rows: Sequence[tuple[float, str]]) -> list[str]:
    """All rows in the classes' order; of very many the worst and the best."""
    if len(rows) <= MAX_CLASSES:
        return [text for _, text in rows]
    scored = sorted((row for row in rows if row[0] >= 0), key=lambda row: row[0])
    left = len(rows) - 2 * SHOWN_AT_EACH_END
    worst, best = scored[:SHOWN_AT_EACH_END], scored[-SHOWN_AT_EACH_END:]
    between = f"  ... {left:,} classes between the worst and the best; --json lists all"
    return [*(text for _, text in worst), between, *(text for _, text in best)]


def _points(value: float) -> str:
    """A share in hundredths; n/a for a class without objects or photos (-1)."""
    return "n/a" if value < 0 else f"{100 * value:.1f}"
