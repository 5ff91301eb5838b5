"""MLflow as a sink: `--sink mlflow`. Its own variables say where to: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME.

A resumed run goes on in the same MLflow run. MLflow would keep two values of one step: what it has is not sent again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from paceline.config.errors import UserError
from paceline.log.events import numbers_of
from paceline.log.follower import Event
from paceline.log.told import Told, config_of, flat

# How MLflow calls a run's end; an interrupted one may go on, and is RUNNING again then.
ENDS = {"interrupted": "KILLED", "failed": "FAILED"}
# Parameters that MLflow takes at once, and characters of one.
MOST_PARAMS, MOST_LETTERS = 100, 500


class MLflow:
    """One MLflow run: metrics train/... and eval/... over the optimiser step, best/... at the end; recipe, plan, system as parameters.

    run         the run's folder; its name is the MLflow run's
    resumed_at  the step that a resumed run goes on from
    Raises whatever mlflow raises where it cannot begin, and UserError where the server does not have the run that goes on.
    """

    def __init__(self, run: Path, resumed_at: int | None) -> None:
        from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]
        from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        self._metric, self._tag = Metric, RunTag
        self._told = Told(run / "mlflow.json", resumed_at)
        self._client = MlflowClient()
        if self._told.id:
            try:
                self._client.update_run(self._told.id, status="RUNNING")
            except MlflowException as problem:
                raise UserError(
                    f"{run / 'mlflow.json'} names a run that {self._client.tracking_uri} does not take "
                    f"({str(problem).splitlines()[0]}). Name its server (MLFLOW_TRACKING_URI), or remove the file."
                ) from None
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "paceline")
            experiment = self._client.get_experiment_by_name(name)
            number = experiment.experiment_id if experiment else self._client.create_experiment(name)
            begun = self._client.create_run(number, run_name=run.name, tags={"paceline.run": str(run)})
            self._told.note(begun.info.run_id)
            params = [Param(key, str(value)[:MOST_LETTERS]) for key, value in flat(config_of(run))]
            for first in range(0, len(params), MOST_PARAMS):
                self._client.log_batch(self._told.id, params=params[first : first + MOST_PARAMS])
        self._status = "FAILED"  # until it has ended well

    def write(self, event: Event) -> None:
        """Log the numbers of an event that is new, and how the run ended."""
        if event["event"] == "end":
            self._log({f"best/{name}": value for name, value in event["best"].items()}, event)
            tags = [self._tag(f"paceline.{name}", str(event[name])) for name in ("status", "reason")]
            self._client.log_batch(self._told.id, tags=tags)
            self._status = ENDS.get(event["status"], "FINISHED")
        elif (numbers := numbers_of(event)) and self._told.is_new(event):
            self._log(numbers, event)
            self._told.note(self._told.id, event)

    def close(self) -> None:
        """The run is over; failed, for MLflow, is a run without an end too."""
        self._client.set_terminated(self._told.id, self._status)

    def _log(self, numbers: dict[str, float], event: Event) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, float(value), now, event["step"]) for name, value in numbers.items()]
        self._client.log_batch(self._told.id, metrics=metrics)
