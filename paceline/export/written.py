"""What every graph's form has in common: facts in the file, and a comparison with the model, without which no file stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._utils.atomic_write import folder_part, whole
from paceline._utils.errors import UserError
from paceline.config.card import NCHW, NHWC
from paceline.export.compare import BOX, MASK, SCORE, answers, compare, own_answers
from paceline.export.graph import Graph
from paceline.export.one_file import card_of
from paceline.export.photos import inputs
from paceline.predict.runners import run_of
from paceline.training.trained import Trained

if TYPE_CHECKING:
    from paceline.export.forms import ExportOptions


class Written:
    """A graph on its way into a file. The model answers first, then its precision changes."""

    def __init__(self, trained: Trained, flags: ExportOptions) -> None:
        """Raises UserError for flags that do not fit, and where there are no photos to compare answers on."""
        self.trained, self.flags = trained, flags
        self.graph, self._card = Graph(trained, flags), json.loads(card_of(trained))
        settings = getattr(self.graph.model, "settings", None)
        self._least = settings and settings.detect.score_above
        asked = flags.compare and flags.precision != "int8"  # whose loss is measured in its place
        self.photos = self._given = inputs(trained, flags) if asked else []
        self._own = self._exact = own_answers(self.graph, self.photos)
        if asked and flags.size:  # other inputs than those of `predict`
            self._given = inputs(trained, flags, self.graph.shape)
            self._exact = own_answers(self.graph, self._given)
        if flags.precision == "fp16":
            self.graph.halve()

    def facts(self, numbers: str = "") -> str:
        """JSON for the file's metadata: the card (config/card.py), and under "graph" how a photo becomes the input.

        numbers  SHA-256 of those in a file beside
        """
        graph = self.graph
        height, width = graph.shape or (None, None)
        found: dict[str, Any] = {
            "layout": NHWC if self.flags.input == "uint8" else NCHW,
            "height": height,
            "width": width,
            "batch": None if graph.any_batch else self.flags.batch,
            "precision": self.flags.precision,
            "compared": len(self.photos),
            **({"numbers": numbers} if numbers else {}),
            **({} if graph.shape else {"shapes": graph.shapes}),
        }
        if self._least is not None:
            found["score_above"] = self._least
        return json.dumps({**self._card, "graph": found})

    @contextmanager
    def placed(self, out: Path) -> Iterator[Path]:
        """A path to write to; what is there when the block ends takes the place of `out`. Its name is a .pt2's inner folder.

        Raises UserError where it cannot be written.
        """
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with folder_part(out) as folder:
                part = folder / f"model{out.suffix}"
                yield part
                with whole(out) as placed:
                    part.rename(placed)
        except OSError as problem:
            raise UserError(f"--out {out}: cannot be written ({problem.strerror}). Name another file.") from None

    def checked(self, part: Path) -> Iterator[str]:
        """Compare the file's answers, and say how much they differ. Raises UserError where that is more than sums of fp32 explain."""
        if not self.photos:
            yield "not compared with the model's own answers, as --compare 0 asks"
            return
        if (precision := self.trained.facts.system.get("precision", "fp32")) != self.flags.precision:
            yield f"the run computes in {precision}, this file in {self.flags.precision}: their answers differ by that"
        given = answers(run_of(part), self.graph, self._given)
        exact = compare(self._exact, given, self._least or 0.0)
        said = exact.in_words(self.graph.outputs)
        if self.flags.precision == "fp32" and not exact.small:
            raise UserError(
                f"--out {self.flags.out}: not written, its answers are not the model's: {said}. Bounds: scores {SCORE:g}, boxes "
                f"{BOX:g} px, masks {MASK:g}. --compare 0 writes it all the same"
            )
        if self._given is not self.photos:
            yield f"compared with the network on inputs of {self.flags.size}: {said}"
            for own, its, boxes in zip(self.photos, self._given, (one[0] for one in given)):
                boxes *= np.array([own.size[1] / its.size[1], own.size[0] / its.size[0]] * 2, np.float32)
            said = compare(self._own, given, self._least or 0.0).in_words(self.graph.outputs)
        yield f"compared with `predict` on the same photos: {said}"
