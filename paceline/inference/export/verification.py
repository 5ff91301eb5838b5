"""What every graph's form has in common: facts in the file, and a comparison with the model, without which no file stays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from paceline._utils.atomic_write import atomic_writer, new_folder_part, write_user_file
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.text import format_count, join_names
from paceline.config.model_card import NCHW, NHWC, make_card
from paceline.config.run import relative_data
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, find_manifest
from paceline.distributed.device.provenance import collect_versions
from paceline.inference.export.graph import Graph
from paceline.inference.graph.graph_model import GraphInput, run_on_images
from paceline.inference.graph.onnx_reader import to_input
from paceline.inference.graph.runtimes import Run, open_session
from paceline.inference.image_input import Photo, encode_photo
from paceline.inference.image_paths import find_photos
from paceline.inference.trained_model import TorchPredictor, TrainedModel
from paceline.models.datamodule import select_evenly
from paceline.models.ops.boxes import pairwise_iou
from paceline.training.checkpoint.write import safetensors_chunks
from paceline.training.logging.events import get_metrics

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions


class WrittenGraph:
    """A graph on its way into a file. The model answers first, then its precision changes."""

    def __init__(self, trained: TrainedModel, flags: ExportOptions) -> None:
        """Raises PacelineError for flags that do not fit, and where there are no photos to compare answers on."""
        self.trained, self.flags = trained, flags
        self.graph, self._card = Graph(trained, flags), json.loads(make_model_card(trained))
        detect = getattr(getattr(self.graph.model, "settings", None), "detect", None)
        self._least = detect and detect.score_threshold
        requested = flags.verify_images and flags.precision != "int8"  # whose loss is measured in its place
        self.photos = self._given = load_sample_images(trained, flags) if requested else []
        self._own = self._exact = run_model(self.graph, self.photos)
        if requested and flags.image_size:  # other inputs than those of `predict`
            self._given = load_sample_images(trained, flags, self.graph.shape)
            self._exact = run_model(self.graph, self._given)
        if flags.precision == "fp16":
            self.graph.halve()

    def facts(self, numbers: str = "") -> str:
        """JSON for the file's metadata: the card (config/model_card.py), and under "graph" how a photo becomes the input.

        numbers  SHA-256 of those in a file beside
        """
        graph = self.graph
        height, width = graph.shape or (None, None)
        result: dict[str, Any] = {
            "layout": NHWC if self.flags.input_dtype == "uint8" else NCHW,
            "height": height,
            "width": width,
            "batch": None if graph.any_batch else self.flags.batch_size,
            "precision": self.flags.precision,
            "compared": len(self.photos),
            **({"numbers": numbers} if numbers else {}),
            **({} if graph.shape else {"shapes": graph.shapes}),
        }
        if self._least is not None:
            result["score_threshold"] = self._least
        return json.dumps({**self._card, "graph": result})

    @contextmanager
    def placed(self, out: Path) -> Iterator[Path]:
        """A path to write to; what is there when the block ends takes the place of `out`. Its name is a .pt2's inner folder.

        Raises PacelineError where it cannot be written.
        """
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with new_folder_part(out) as folder:
                part = folder / f"model{out.suffix}"
                yield part
                with atomic_writer(out) as placed:
                    part.rename(placed)
        except OSError as problem:
            raise PacelineError(f"--output {out}: cannot be written ({problem.strerror}). Choose another file.") from None

    def checked(self, part: Path) -> Iterator[str]:
        """Compare the file's predictions and report the differences. Raises PacelineError if fp32 sums do not explain them."""
        if not self.photos:
            yield "the predictions were not compared with the model, because of --verify-images 0"
            return
        if (precision := self.trained.facts.system.get("precision", "fp32")) != self.flags.precision:
            yield f"the run uses {precision} and this file {self.flags.precision}, so their scores differ slightly"
        explicit = run_graph(open_session(part), self.graph, self._given)
        exact = compare_predictions(self._exact, explicit, self._least or 0.0)
        said = exact.format_line(self.graph.outputs)
        if self.flags.precision == "fp32" and not exact.small:
            raise PacelineError(
                f"--output {self.flags.output}: not written, because its predictions differ from the model: {said}. Limits: scores "
                f"{SCORE:g}, boxes {BOX:g} px, masks {MASK:g}. To write the file without this check, set --verify-images 0"
            )
        if self._given is not self.photos:
            yield f"compared with the network on inputs of {self.flags.image_size}: {said}"
            for own, its, boxes in zip(self.photos, self._given, (one[0] for one in explicit)):
                boxes *= np.array([own.size[1] / its.size[1], own.size[0] / its.size[0]] * 2, np.float32)
            said = compare_predictions(self._own, explicit, self._least or 0.0).format_line(self.graph.outputs)
        yield f"compared with `predict` in fp32 on the same images: {said}"


# --format paceline: one file that every verb here takes where it takes a run, the evaluated weights with a card
# (config/model_card.py).

# What a run.json has of where a run came from -> its name on the card.
OF_RUN = {"sha256": "id", "started": "started", "git_commit": "commit"}


def write(trained: TrainedModel, out: Path, flags: ExportOptions) -> Iterator[str]:
    """Write `out`. Raises PacelineError where something else is there, or a class has a name that no card takes."""
    try:
        card = make_model_card(trained)
    except PacelineError as problem:
        raise PacelineError(f"{trained.folder}: {problem}") from None
    tensors = {name: tensor.cpu() for name, tensor in trained.model.state_dict().items()}
    write_user_file(out, safetensors_chunks(tensors, card))
    yield (
        f"{out}: {trained.checkpoint} of {trained.folder}, {format_count(len(trained.classes), 'class')} "
        f"({join_names(trained.classes, 3)}), {out.stat().st_size / 2**20:.1f} MiB"
    )


def make_model_card(trained: TrainedModel) -> str:
    """The card of an opened model. Raises PacelineError as `make_card`."""
    facts, more = trained.facts.as_dict(), {"recipe": asdict(trained.recipe), "step": trained.step}
    if trained.folder.is_dir():  # a run; a file has brought its own card, or has none of this
        predictor = TorchPredictor(trained)
        result = get_metrics(event) if (event := predictor.evaluation()) else {}
        came = {name: facts[key] for key, name in OF_RUN.items() if facts.get(key)}
        more["metrics"] = {name: value for name, value in result.items() if abs(value) < 1e300}
        more |= {"best_f1": best} if (best := predictor.best_f1()) else {}
        more["run"] = {"folder": trained.folder.resolve().name, "checkpoint": trained.checkpoint, **came}
    return make_card({"versions": collect_versions(), **facts}, **more)


# Compares a written form's answers with the run's own, matched one to one, and finds the largest difference.
#
# The run's own are those of the CPU's forms (models/ops/dispatch.py), which share neither suppression nor pooling with a graph's.
# A detection has its partner where class and place are the same: IoU above a half, the nearest. It may be without one where the
# other list may have ended before it: at the threshold, or at the last place of a full list, within the bound.
#
# Letters: n photos   K classes   D places   S side of a mask

# The outputs for one photo.
Answers: TypeAlias = Sequence[np.ndarray]
# Bounds of fp32: sums in another order move a score by 1e-6 to 5e-5 and an edge by a hundredth of a pixel at most. A mask is read at
# one half, where 0.01 of a probability is a fiftieth of a cell.
SCORE, BOX, MASK = 1e-4, 1e-2, 1e-2


@dataclass
class GraphDifference:
    """The largest ones between the answers for n photos."""

    photos: int
    found: int = 0  # objects of the run; 0 of a classifier
    alone: int = 0  # objects of either that have no partner; photos whose best class is another one
    score: float = 0.0
    box: float = 0.0  # of an edge, pixels of the input
    mask: float = 0.0  # of a probability
    overlap: float = 1.0  # least IoU of two masks

    @property
    def small(self) -> bool:
        """Whether all are within the bounds of fp32."""
        return not self.alone and self.score <= SCORE and self.box <= BOX and self.mask <= MASK

    def format_line(self, outputs: Sequence[str]) -> str:
        """On one line."""
        what = format_count(self.photos, "image")
        if "boxes" not in outputs:
            return f"{what}: maximum difference of a probability {self.score:.1g}; {self.alone:,} with another top class"
        masks = f", of a mask {self.mask:.1g} (minimum IoU {self.overlap:.4f})" if "masks" in outputs else ""
        return (
            f"{what}, {format_count(self.found, 'object')}, {self.alone:,} unmatched: maximum difference of a score "
            f"{self.score:.1g}, of a box {self.box:.1g} px{masks}"
        )


def run_graph(run: Run, graph: Graph, photos: Sequence[GraphInput]) -> list[Answers]:
    """Of each photo, by `run`, float32."""

    def floats(arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(part, np.float32) for part in run(arguments)]

    count = max(1, len(photos)) if graph.any_batch else graph.flags.batch_size
    return list(run_on_images(floats, photos, count, graph.flags.input_dtype, sized=len(graph.example()) > 1))


def run_model(graph: Graph, photos: Sequence[GraphInput]) -> list[Answers]:
    """Of each photo, by the model itself."""

    def run(arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            return [part.numpy() for part in graph(*map(torch.from_numpy, arguments))]

    return run_graph(run, graph, photos)


def compare_predictions(own: Sequence[Answers], theirs: Sequence[Answers], least: float = 0.0) -> GraphDifference:
    """The model's answers for n photos, and another form's; least: score from which on objects are found."""
    result = GraphDifference(len(own))
    for one, other in zip(own, theirs, strict=True):
        if len(one) == 1:
            result.alone += int(one[0].argmax() != other[0].argmax())
            result.score = _largest(result.score, one[0] - other[0])
        else:
            _add(result, one, other, least)
    return result


def _add(result: GraphDifference, one: Answers, other: Answers, least: float) -> None:
    """The objects of one photo."""
    (boxes, scores, labels), (their_boxes, their_scores, their_labels) = one[:3], other[:3]
    overlaps = pairwise_iou(*(torch.from_numpy(np.ascontiguousarray(part)) for part in (boxes, their_boxes))).numpy()
    same = (labels[:, None] == their_labels) & (labels[:, None] >= 0)
    # Boxes without area have no overlap, with themselves neither.
    apart = np.abs(boxes[:, None] - their_boxes).max(axis=2, initial=0)
    near = np.where(same & ((overlaps > 0.5) | (apart < BOX)), apart + np.abs(scores[:, None] - their_scores), np.inf)
    partners = {}
    for location in np.flatnonzero(labels >= 0):
        nearest = int(near[location].argmin())
        if np.isfinite(near[location, nearest]):
            partners[int(location)] = nearest
            near[:, nearest] = np.inf
    mine, its = np.array(list(partners), int), np.array(list(partners.values()), int)
    result.found += int((labels >= 0).sum())
    result.score = _largest(result.score, scores[mine] - their_scores[its])
    result.box = _largest(result.box, boxes[mine] - their_boxes[its])
    for values, taken, kinds, ends in ((scores, mine, their_labels, their_scores), (their_scores, its, labels, scores)):
        # The other list may have lacked a place for it.
        end = max(least, float(ends[-1]) if kinds[-1] >= 0 else least) + SCORE
        result.alone += int((np.delete(values, taken) > end).sum())
    if len(one) == 4 and len(mine):
        masks, their_masks = one[3][mine], other[3][its]
        result.mask = _largest(result.mask, masks - their_masks)
        both, either = (masks > 0.5) & (their_masks > 0.5), (masks > 0.5) | (their_masks > 0.5)
        shares = both.sum(axis=(1, 2)) / np.maximum(either.sum(axis=(1, 2)), 1)
        result.overlap = min(result.overlap, float(np.where(either.any(axis=(1, 2)), shares, 1.0).min()))


def _largest(before: float, differences: np.ndarray) -> float:
    return max(before, float(np.abs(differences).max(initial=0.0)))


# Photos to compare a form's answers on, as its graph takes them.
#
# Letters: H, W pixels of the input


def load_sample_images(
    trained: TrainedModel, flags: ExportOptions, shape: tuple[int, int] | None = None, photos: Iterable[Photo] | None = None
) -> list[GraphInput]:
    """The photos that are readable, of `photos`; else of --verify-dir or the run's validation set `flags.compare`, evenly spread.

    shape  H, W of the file's input; None: the input that `predict` makes of each photo
    Raises PacelineError where there are none, with what to do.
    """
    results, recipe, read = [], trained.recipe, TorchPredictor(trained).reader()
    for photo in _photos(trained, flags) if photos is None else photos:
        try:
            seen = read(photo)
        except DataError:  # damaged
            continue
        if shape is None:
            results.append(
                GraphInput(
                    seen.pixels, seen.label.size if recipe.task == "instance-segmentation" else seen.pixels.shape[:2]
                )
            )
        else:
            rules = {"task": recipe.task, "input": asdict(recipe.input), "height": shape[0], "width": shape[1]}
            results.append(GraphInput(*to_input(encode_photo(photo)[0], rules)[:2]))
    if not results:
        raise PacelineError(f"{flags.verify_dir or trained.folder}: no readable images found.")
    return results


def select_named_images(folder: str, most: int) -> list[Path]:
    """Those of --verify-dir, evenly spread."""
    photos = find_photos([Path(folder).expanduser()]).photos
    return [photos[location] for location in select_evenly(len(photos), most)]


def _photos(trained: TrainedModel, flags: ExportOptions) -> Iterator[Photo]:
    if flags.verify_dir:
        yield from select_named_images(flags.verify_dir, flags.verify_images)
        return
    try:
        index = open_split(_manifest(trained), "val")
    except PacelineError as problem:
        raise PacelineError(
            f"{trained.folder}: the validation images of the run were not found ({str(problem).splitlines()[0].rstrip('.')}). "
            "To compare on other images, add --verify-dir DIR. To write the file without a comparison, set --verify-images 0"
        ) from None
    yield from (index.read(int(location)) for location in select_evenly(len(index), flags.verify_images))


def _manifest(trained: TrainedModel) -> Manifest:
    """Of the data set that the run was trained on. Raises DataError where it is not here."""
    facts = trained.facts
    noted = facts.data.get("manifest")
    if isinstance(noted, str) and Path(noted).is_dir():
        return Manifest.load(Path(noted))
    location = relative_data(facts)
    result = find_manifest(Path(location).expanduser()) if location else None
    if result is None:
        raise DataError("run.json does not record a dataset" if not location else f"{location}: not prepared here")
    return Manifest.load(result)
