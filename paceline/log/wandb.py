"""Weights & Biases as a sink: `--sink wandb`. Its own variables say where to: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, ...

A resumed run goes on in the same W&B run. W&B refuses steps that run backwards: what it has stays, and is not sent again.
Offline (WANDB_MODE=offline) each start of a run leaves a folder in RUN/wandb, and `wandb sync` joins those of one run.
"""

from __future__ import annotations

import importlib
import os
import secrets
from pathlib import Path
from typing import Any

from paceline.log.events import numbers_of
from paceline.log.follower import Event
from paceline.log.told import Told, config_of


class WeightsAndBiases:
    """One W&B run: train/... and eval/... over the optimiser step; in its summary best/... and the status.

    run         the run's folder; its name is the W&B run's, unless WANDB_NAME says another
    resumed_at  the step that a resumed run goes on from
    Raises whatever wandb raises where it cannot begin: no key, no server.
    """

    def __init__(self, run: Path, resumed_at: int | None) -> None:
        wandb: Any = importlib.import_module("wandb")  # an extra; this file has its name
        self._told = Told(run / "wandb.json", resumed_at)
        name = self._told.id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        self._run = wandb.init(
            id=name,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", "paceline"),
            name=os.environ.get("WANDB_NAME", run.name),
            dir=os.environ.get("WANDB_DIR", str(run)),
            # What is printed is ours, with a line that is drawn again and again; and a run's last words are short.
            settings=wandb.Settings(console="off", quiet=True),
        )
        self._run.config.update(config_of(run), allow_val_change=True)
        self._told.note(name)
        self._code = 1  # until it has ended well

    def write(self, event: Event) -> None:
        """Log the numbers of an event that is new, and how the run ended."""
        if event["event"] == "end":
            best = {f"best/{name}": value for name, value in event["best"].items()}
            self._run.summary.update({**best, "status": event["status"], "reason": event["reason"]})
            self._code = int(event["status"] == "failed")
        elif (numbers := numbers_of(event)) and self._told.is_new(event):
            # An evaluation whose result a kill cut off comes after its step is closed there: it is put into the next.
            step = event["step"] if event["event"] == "train" else max(event["step"], self._run.step)
            self._run.log({**numbers, "epoch": event["epoch"]}, step=step)
            self._told.note(self._told.id, event)

    def close(self) -> None:
        """Send what is pending; failed, for W&B, is a run without an end too."""
        self._run.finish(exit_code=self._code)
