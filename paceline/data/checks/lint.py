"""`paceline data lint DIR`: what in a data set spoils results, or deserves a look before training.

bad   photos that cannot be decoded, copies across splits or classes, classes of val that train lacks or that have two names, objects
      without area or outside
fair  copies within a split, boxes that look like mistakes, unequal classes, photos turned by EXIF, photos that another library decodes
      otherwise, labels that runs contradict
Nothing is changed.

Labels that a run's answers on photos it did not learn from speak against; somebody has to look at each. Classes, by the rule of
confident learning (Northcutt, Jiang, Chuang 2021): the best class is another one, with at least the probability that photos of that
class have on average. Objects, among detections from the score of the best F1 on:
    class    on an object (IoU 0.6), of another class, and none of the object's own class is there
    place    the object's own class, and they meet (IoU 0.3) without covering each other (0.6, or what is an outlier of the class's
             overlaps where the run is that exact); nothing covers it better
    missing  where no object is (IoU below 0.1), with a score of 0.6 or more

Letters: D detections   M objects of a photo
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline._utils.commands import format_command
from paceline._utils.errors import DataError
from paceline._utils.reporter import Reporter
from paceline.data.checks.near_duplicates import MAX_PHOTOS, find_near_duplicates
from paceline.data.checks.suspicious_boxes import (
    KINDS,
    find_equal_photos,
    find_rotated_images,
    find_suspicious,
    names_where,
    open_displayed_splits,
    paired_overlaps,
)
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest

SHOWN = 5  # of a finding in the terminal; --json and --html have more
UNEQUAL = 20  # from this ratio of the most common class to the rarest on
Place = tuple[str, int]  # split, row
ON, MEETS, BESIDE, SURE = 0.6, 0.3, 0.1, 0.6
FEW = 20  # objects of a class that show how exact a run is
SCORE = 0.5  # where a run found no threshold
Kind = Literal["class", "place", "missing"]
TITLES: dict[Kind, str] = {
    "class": "labels that contradict the predictions",
    "place": "boxes that are not at the predicted position",
    "missing": "predicted objects without a label",
}


class LintMatch(NamedTuple):
    """One photo, object or class."""

    place: Place | None  # None for classes
    objects: tuple[int, ...]  # rows of the split's objects
    name: str  # the photo's file below the set's folder, or the classes
    note: str = ""  # what was seen there

    @property
    def text(self) -> str:
        """Both on a line."""
        return f"{self.name}: {self.note}" if self.note else self.name


class LintIssue(NamedTuple):
    """All of one kind."""

    colour: Literal["bad", "fair"]
    key: str  # stable, for programs
    title: str
    why: str
    found: Sequence[LintMatch]

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {**self._asdict(), "found": [one.text for one in self.found]}


def lint(
    splits: Mapping[str, Index],
    classes: Sequence[str],
    answers: Mapping[str, Mapping[str, Any]],
    folders: Sequence[str] = (),
) -> list[LintIssue]:
    """Every finding, the bad ones first; kinds of which there is none are left out.

    splits   of one data set, train first; boxes in the frame that they are drawn in
    classes  their names, 0..K-1 of class folders, 1..K of boxes
    answers  a run's name -> the content of its predictions, on photos of these splits; compared with the labels of the splits
    folders  names of the class folders
    Raises DataError for answers on other photos, and for a photo that is gone or has changed since it was indexed.
    """
    findings = [*_copies(splits), *_classes(splits, classes), *_objects(splits), *_turned(splits)]
    findings += _labels(splits, (classes, folders), answers)
    return sorted((one for one in findings if one.found), key=lambda one: one.colour)


def _copies(splits: Mapping[str, Index]) -> Iterable[LintIssue]:
    equal = find_equal_photos(splits)
    near = find_near_duplicates(splits)
    kinds = [("equal", "identical bytes", equal)]
    if near is not None:
        pairs = [(pair.first, pair.second) for pair in near.pairs]
        known = set(map(frozenset, equal))
        kinds.append(("near", "re-encoded, resized, or mirrored", [pair for pair in pairs if frozenset(pair) not in known]))
        damaged = [LintMatch(location, (), _name(splits, location)) for location in near.damaged]
        yield LintIssue("bad", "damaged", "images that cannot be decoded", "training would stop at these images", damaged)
        apart = [LintMatch(location, (), _name(splits, location), note) for location, note in near.apart]
        why = "another image library gives the model different pixels"
        yield LintIssue("fair", "decoded_apart", "images that libraries decode differently", why, apart)
    for key, how, pairs in kinds:
        across = [pair for pair in pairs if pair[0][0] != pair[1][0]]
        within = [pair for pair in pairs if pair[0][0] == pair[1][0]]
        named = [pair for pair in within if _differ(splits, *pair)]
        rest = [pair for pair in within if not _differ(splits, *pair)]
        yield LintIssue(
            "bad", f"{key}_across", f"duplicates across splits ({how})", "scores will be too high", _pairs(splits, across)
        )
        yield LintIssue(
            "bad", f"{key}_classes", f"duplicates across classes ({how})", "one label is wrong", _pairs(splits, named)
        )
        yield LintIssue(
            "fair", f"{key}_within", f"duplicates in a split ({how})", "each counts twice", _pairs(splits, rest)
        )
    if near is None:
        text = f"the dataset has more than {MAX_PHOTOS:,} images, so only identical images were searched"
        yield LintIssue("fair", "near", "near-duplicates", "not checked", [LintMatch(None, (), text)])


def _differ(splits: Mapping[str, Index], one: Place, other: Place) -> bool:
    """Whether two photos of class folders lie in two classes."""
    if "object_starts" in splits[one[0]].extra:
        return False
    labels = [int(splits[split].labels[row]) for split, row in (one, other)]
    return labels[0] != labels[1]


def _pairs(splits: Mapping[str, Index], pairs: Iterable[tuple[Place, Place]]) -> list[LintMatch]:
    return [LintMatch(second, (), _name(splits, second), f"duplicate of {_name(splits, first)}") for first, second in pairs]


def _name(splits: Mapping[str, Index], location: Place) -> str:
    """The photo's file below the set's folder."""
    return os.fsdecode(splits[location[0]].relative_name(location[1]))


def _classes(splits: Mapping[str, Index], classes: Sequence[str]) -> Iterable[LintIssue]:
    counts = {name: _counts(index, len(classes)) for name, index in splits.items()}
    spelt = defaultdict(list)
    for name in classes:
        spelt[re.sub(r"[\W_]+", "", name.casefold()).removesuffix("s")].append(name)
    twice = [LintMatch(None, (), " and ".join(names)) for names in spelt.values() if len(names) > 1]
    yield LintIssue("bad", "class_twice", "classes with two spellings of one name", "each has a part of the images", twice)
    for split, learnt in ((name, counts["train"]) for name in counts if name != "train" and "train" in counts):
        unseen = [LintMatch(None, (), name) for name in names_where((counts[split] > 0) & (learnt == 0), classes)]
        yield LintIssue("bad", "unseen", f"classes of {split} that train does not have", "they cannot be learned", unseen)
        unscored = [LintMatch(None, (), name) for name in names_where((counts[split] == 0) & (learnt > 0), classes)]
        yield LintIssue("fair", "unscored", f"classes of train that {split} does not have", "not scored", unscored)
    first = next(iter(counts.values()), np.zeros(0))
    there = np.flatnonzero(first)
    if len(there) and first.max() >= UNEQUAL * first[there].min():
        most, least = int(first.argmax()), int(there[first[there].argmin()])
        text = f"{classes[most]} {first[most]:,}, {classes[least]} {first[least]:,}"
        yield LintIssue("fair", "unequal", "class imbalance", "rare classes are learned last", [LintMatch(None, (), text)])


def _counts(index: Index, classes: int) -> np.ndarray:
    if "object_starts" in index.extra:
        return np.bincount(np.asarray(index.extra["classes"]), minlength=classes + 1)[1:]
    return np.bincount(index.labels, minlength=classes)


def _objects(splits: Mapping[str, Index]) -> Iterable[LintIssue]:
    of = {name: find_suspicious(index) for name, index in splits.items() if "object_starts" in index.extra}
    for kind in KINDS:
        results = [
            LintMatch((name, one.image), one.objects, _name(splits, (name, one.image)), one.note)
            for name, kinds in of.items()
            for one in kinds[kind.key].worst
        ]
        title = f"{kind.title[0].lower()}{kind.title[1:]}"
        yield LintIssue("bad" if kind.grave else "fair", kind.key, title, kind.why, results)


def _turned(splits: Mapping[str, Index]) -> Iterable[LintIssue]:
    results = [LintMatch(location, (), _name(splits, location)) for location in find_rotated_images(splits)]
    why = "readers that ignore EXIF show them rotated, so boxes drawn in one orientation are wrong in the other"
    yield LintIssue("fair", "turned", "images with an EXIF rotation", why, results)


def _labels(
    splits: Mapping[str, Index], names: Sequence[Sequence[str]], answers: Mapping[str, Mapping[str, Any]]
) -> Iterable[LintIssue]:
    result: defaultdict[str, list[tuple[float, LintMatch]]] = defaultdict(list)
    skipped: list[LintMatch] = []
    for run, predictions in answers.items():
        try:
            suspects = find_label_errors(_with_current_labels(predictions, splits, names, skipped))
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            reason = problem if isinstance(problem, ValueError) else f"invalid field {problem}"
            raise DataError(
                f"--predictions {run}: the predictions do not match the labels of this dataset: {reason}. Write new "
                "predictions with `paceline eval RUN --data DIR --output FILE`, and set --predictions FILE."
            ) from None
        for one in suspects:
            split, row = one.file
            objects = () if one.object is None else (int(splits[split].extra["object_starts"][row]) + one.object,)
            result[one.kind].append((one.degree, LintMatch((split, row), objects, _name(splits, (split, row)), one.note)))
    for kind, title in TITLES.items():
        surest = [one for _, one in sorted(result[kind], key=lambda pair: -pair[0])]
        yield LintIssue("fair", f"label_{kind}", title, "check each one; the most confident come first", surest)
    yield LintIssue("fair", "not_compared", "labels not compared with a run", "the dataset has changed", skipped)


def _with_current_labels(
    predictions: Mapping[str, Any], splits: Mapping[str, Index], names: Sequence[Sequence[str]], skipped: list[LintMatch]
) -> dict[str, Any]:
    """Return the predictions with the present labels and class numbers of the set; a photo's place is its "file".

    names    of the set's classes: readable ones, and names of class folders
    skipped  receives the photos and classes that have no counterpart
    Photos are found by the checksum of their bytes, and in predictions without checksums by path. Of equal photos the last counts.
    Raises KeyError, TypeError, ValueError, or IndexError for other fields, another task, and if no photo is left.
    """
    known: dict[str, Place] = {}
    for name, index in splits.items():
        for row, digest in enumerate(index.extra["digests"].tolist()):
            known |= dict.fromkeys((index.path(row), _name(splits, (name, row)), f"{digest:016x}"), (name, row))
    first = int(predictions["kind"] != "classification")  # number of the first class
    if first != all("object_starts" in index.extra for index in splits.values()):
        raise ValueError(f"the dataset has labels of another kind than {predictions['kind']}")
    before, images = predictions["classes"], {}
    now = list(max(names, key=lambda listed: len({*listed} & {*before})))
    number = {name: position for position, name in enumerate(now, first)}
    numbers = {k: k if before == now else number[name] for k, name in enumerate(before, first) if name in number}
    shared = [*numbers.values()]
    skipped += [
        LintMatch(None, (), name, "class not in the run") for name, position in number.items() if position not in shared
    ]
    for image in predictions["images"]:
        split, row = location = known.get(image.get("digest", image["file"]), ("", 0))
        index = splits.get(split)
        if index is None or image.get("width", index.widths[row]) != index.widths[row]:
            skipped.append(LintMatch(None, (), image["file"], "missing or changed"))
        elif first:
            rows = slice(*index.extra["object_starts"][row : row + 2])
            labels, crowd = index.extra["classes"][rows], index.extra["crowd"][rows] > 0
            # Nothing is reported for an object of a class that the run does not have.
            truth = {"boxes": index.extra["boxes"][rows], "labels": labels, "crowd": crowd | ~np.isin(labels, shared)}
            labels = [numbers.get(label, 0) for label in image["labels"]]
            images[location] = {**image, "file": location, "labels": labels, "truth": truth}
        elif index.labels[row] in shared:
            best = [{**one, "class": numbers[one["class"]]} for one in image["top5"] if one["class"] in numbers]
            images[location] = {"file": location, "label": int(index.labels[row]), "top5": best}
    if predictions["images"] and not images:
        raise ValueError(f"every image of the run is missing or changed, such as {skipped[-1].name}")
    return {**predictions, "classes": now, "images": [*images.values()]}


def require_usable(manifest: Manifest, reporter: Reporter) -> None:
    """What `train --lint` does before anything is built: the findings as lines.

    Raises DataError where one of them would spoil a result.
    """
    findings = lint(open_displayed_splits(manifest), manifest.class_names or manifest.classes, {})
    for line in format_issues(findings):
        reporter.line(line)
    if bad := [one for one in findings if one.colour == "bad"]:
        what = "; ".join(f"{one.title}: {len(one.found):,}" for one in bad)
        more = format_command("data", "lint", manifest.called, "--html", "lint.html")
        raise DataError(f"--lint: {what}. Training did not start. To see the issues, run  {more}  or remove --lint.")
    if not findings:
        reporter.line("lint: no issues found")


def format_issues(findings: Sequence[LintIssue]) -> Iterator[str]:
    """A line a finding, and one for each of the first."""
    for one in findings:
        yield f"{one.colour}  {len(one.found):,}  {one.title}: {one.why}"
        yield from (f"        {result.text}" for result in one.found[:SHOWN])
        if len(one.found) > SHOWN:
            yield f"        and {len(one.found) - SHOWN:,} more"


class SuspiciousLabel(NamedTuple):
    """One label."""

    kind: Kind
    file: Any  # the photo's, as the predictions have it
    object: int | None  # its number in the photo; None for a photo's class, and for a missing one
    note: str  # what is labeled and what was found
    degree: float  # the larger, the surer


def find_label_errors(predictions: Mapping[str, Any]) -> list[SuspiciousLabel]:
    """The surest first. predictions: the content of RUN/predictions/step-N.json; a detection of class 0 does not count."""
    result = _of_photos if predictions["kind"] == "classification" else _of_objects
    return sorted(result(predictions), key=lambda suspect: -suspect.degree)


def _of_photos(predictions: Mapping[str, Any]) -> Iterator[SuspiciousLabel]:
    names = predictions["classes"]
    images = [image for image in predictions["images"] if image["top5"]]
    own: list[list[float]] = [[] for _ in names]
    chances = [{answer["class"]: answer["score"] for answer in image["top5"]} for image in images]
    for image, chance in zip(images, chances):
        own[image["label"]].append(chance.get(image["label"], 0.0))
    usual = [float(np.mean(some)) if some else 1.0 for some in own]
    for image, chance in zip(images, chances):
        label, (best, score) = image["label"], max(chance.items(), key=lambda pair: pair[1])
        if best != label and score >= usual[best]:
            note = f"labeled {names[label]}, predicted {names[best]} with score {score:.2f}"
            yield SuspiciousLabel("class", image["file"], None, note, score - chance.get(label, 0.0))


class _Shown(NamedTuple):
    """One photo's detections from the best threshold on, and its objects."""

    file: Any
    boxes: np.ndarray  # (D, 4)
    scores: np.ndarray  # (D,)
    labels: np.ndarray  # (D,)
    classes: np.ndarray  # (M,)
    crowd: np.ndarray  # (M,) bool
    overlap: np.ndarray  # (D, M)
    alike: np.ndarray  # (D, M) the overlap with objects of the same class, else 0


def _of_objects(predictions: Mapping[str, Any]) -> Iterator[SuspiciousLabel]:
    names, photos = predictions["classes"], [*_shown(predictions)]
    least = _least_overlap(photos, len(names))
    for photo in photos:
        for row in np.flatnonzero(~photo.crowd).tolist() if len(photo.scores) else ():
            k, alike, scores = int(photo.classes[row]), photo.alike[:, row], photo.scores
            others = np.where((photo.labels != k) & (photo.overlap[:, row] >= ON), scores, -1.0)
            index, nearest = int(others.argmax()), int(alike.argmax())
            if others[index] >= 0 and alike.max() < MEETS:
                note = f"labeled {names[k - 1]}, predicted {names[photo.labels[index] - 1]} with score {scores[index]:.2f}"
                yield SuspiciousLabel("class", photo.file, row, note, float(scores[index]))
            elif MEETS <= alike[nearest] < least[k] and photo.overlap[nearest].argmax() == row:
                note = f"{names[k - 1]}, predicted with score {scores[nearest]:.2f} and IoU {alike[nearest]:.2f}"
                degree = float(scores[nearest] * (1 - alike[nearest]))
                yield SuspiciousLabel("place", photo.file, row, note, degree)
        for index in np.flatnonzero((photo.overlap.max(axis=1, initial=0) < BESIDE) & (photo.scores >= SURE)).tolist():
            left, top, width, height = photo.boxes[index].tolist()
            note = f"predicted {names[photo.labels[index] - 1]} with score {photo.scores[index]:.2f}, "
            note += f"{width:.0f} x {height:.0f} px at {left:.0f}, {top:.0f}"
            yield SuspiciousLabel("missing", photo.file, None, note, float(photo.scores[index]))


def _shown(predictions: Mapping[str, Any]) -> Iterator[_Shown]:
    above = predictions.get("best_f1", {}).get("threshold", SCORE)
    for image in predictions["images"]:
        scores, truth = np.array(image["scores"], np.float64), image["truth"]
        labels, classes = np.array(image["labels"], np.int64), np.array(truth["labels"], np.int64)
        kept = np.flatnonzero((scores >= above) & (labels > 0))
        boxes, labels = np.array(image["boxes"], np.float64).reshape(-1, 4)[kept], labels[kept]
        objects, crowd = np.array(truth["boxes"], np.float64).reshape(-1, 4), np.array(truth["crowd"], bool)
        pairs = np.indices((len(boxes), len(objects))).reshape(2, -1)  # each with each
        overlap = paired_overlaps(boxes[pairs[0]], objects[pairs[1]], crowd[pairs[1]]).reshape(len(boxes), len(objects))
        alike = np.where(labels[:, None] == classes[None], overlap, 0.0)
        yield _Shown(image["file"], boxes, scores[kept], labels, classes, crowd, overlap, alike)


def _least_overlap(photos: Sequence[_Shown], classes: int) -> np.ndarray:
    """(K + 1,) what a sound label of each class overlaps with where it is found: ON, or more where the run is that exact."""
    best = [photo.alike.max(axis=0, initial=0) for photo in photos]
    overlap = np.concatenate([np.zeros(0), *best])
    of = np.concatenate([np.zeros(0, np.int64), *(photo.classes for photo in photos)])
    least = np.full(classes + 1, ON)
    for k in range(1, classes + 1):
        mine = overlap[(of == k) & (overlap >= MEETS)]
        if len(mine) >= FEW:
            low, high = np.quantile(mine, (0.25, 0.75))
            least[k] = max(ON, low - 1.5 * (high - low))  # below are outliers (Tukey 1977)
    return least
