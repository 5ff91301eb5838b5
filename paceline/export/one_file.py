"""--to paceline: one file that every verb here takes where it takes a run, the evaluated weights with a card (config/card.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.atomic_write import write_output
from paceline._utils.errors import UserError
from paceline._utils.text import counted, some
from paceline.config.card import make_card
from paceline.log.events import metrics_of
from paceline.machine.provenance import versions
from paceline.predict.predictor import Predictor
from paceline.training.checkpoint.write import safetensors_chunks
from paceline.training.trained import Trained

if TYPE_CHECKING:
    from paceline.export.forms import ExportOptions

# What a run.json has of where a run came from -> its name on the card.
OF_RUN = {"sha256": "id", "started": "started", "git_commit": "commit"}


def write(trained: Trained, out: Path, flags: ExportOptions) -> Iterator[str]:
    """Write `out`. Raises UserError where something else is there, or a class has a name that no card takes."""
    try:
        card = card_of(trained)
    except UserError as problem:
        raise UserError(f"{trained.folder}: {problem}") from None
    tensors = {name: tensor.cpu() for name, tensor in trained.model.state_dict().items()}
    write_output(out, safetensors_chunks(tensors, card))
    yield (
        f"{out}: {trained.checkpoint} of {trained.folder}, {counted(len(trained.classes), 'class')} "
        f"({some(trained.classes, 3)}), {out.stat().st_size / 2**20:.1f} MiB"
    )


def card_of(trained: Trained) -> str:
    """The card of an opened model. Raises UserError as `make_card`."""
    facts, more = trained.facts.as_dict(), {"recipe": asdict(trained.recipe), "step": trained.step}
    if trained.folder.is_dir():  # a run; a file has brought its own card, or has none of this
        predictor = Predictor(trained)
        found = metrics_of(event) if (event := predictor.evaluation()) else {}
        came = {name: facts[key] for key, name in OF_RUN.items() if facts.get(key)}
        more["metrics"] = {name: value for name, value in found.items() if abs(value) < 1e300}
        more |= {"best_f1": best} if (best := predictor.best_f1()) else {}
        more["run"] = {"folder": trained.folder.resolve().name, "checkpoint": trained.checkpoint, **came}
    return make_card({"versions": versions(), **facts}, **more)
