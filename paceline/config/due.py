"""What follows which step of a run: a train event, an evaluation, a checkpoint; and which step is its last."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.config.plan import Plan, epoch_ends
from paceline.config.run import Controls

# A run prints about this many train events, and one at least every LOG_AT_MOST steps.
EVENTS_IN_A_RUN, LOG_AT_MOST = 200, 100


@dataclass
class Due:
    """Asked after `step` steps are done; the same on every rank."""

    log_every: int  # steps between train events
    save_every: int  # steps between checkpoints
    eval_steps: frozenset[int]  # those that an evaluation follows
    steps_per_epoch: float  # need not be whole
    last_step: int  # of this command
    why_last: str = ""  # where something else than the command's length made it the last

    @classmethod
    def of(cls, plan: Plan, controls: Controls) -> Due:
        """As the command says, else about 200 train events a run and a checkpoint an epoch."""
        return cls(
            log_every=controls.log_every or min(LOG_AT_MOST, max(1, plan.total_steps // EVENTS_IN_A_RUN)),
            save_every=controls.save_every or max(1, math.ceil(plan.steps_per_epoch - 1e-6)),
            eval_steps=frozenset(plan.eval_steps),
            steps_per_epoch=plan.steps_per_epoch,
            last_step=plan.stop_after,
        )

    def end(self, step: int, why: str) -> None:
        """Make this step the run's last: it is evaluated and saved as the last step always is."""
        self.last_step, self.why_last = step, why

    def log(self, step: int) -> bool:
        """Whether a train event follows."""
        return step % self.log_every == 0 or step >= self.last_step

    def evaluation(self, step: int) -> bool:
        """Whether an evaluation follows."""
        return step in self.eval_steps or step >= self.last_step

    def save(self, step: int) -> bool:
        """Whether a checkpoint follows (an evaluation saves one anyway)."""
        return step % self.save_every == 0

    def result(self, step: int) -> bool:
        """Whether a result still pending is taken first: before anything of a later step than its own is written down."""
        return self.log(step) or self.evaluation(step) or self.save(step) or epoch_ends(step, self.steps_per_epoch)
