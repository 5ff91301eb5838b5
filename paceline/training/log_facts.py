"""What the logs say of a run before it starts."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.config.run import Run
from paceline.config.submission import division_of
from paceline.log.sinks import Facts
from paceline.tasks.metrics.target import in_words
from paceline.tasks.workload import Workload


def log_facts(run: Run, workload: Workload, parameters: Sequence[str], device: str) -> Facts:
    """What the logs say of the run before it starts.

    parameters  their names, in the model's order
    device      what each rank computes on
    """
    plan, said = run.plan, run.controls.mlperf
    ranks = plan.world + plan.eval_ranks
    return Facts(
        target=in_words(run.recipe.quality.targets),
        total_steps=plan.stop_after,
        global_batch=plan.global_batch,
        steps_per_epoch=plan.steps_per_epoch,
        eval_steps=plan.eval_steps,
        train_images=plan.train_images,
        val_images=plan.val_images,
        submission={
            "benchmark": workload.benchmark,
            "org": said.submitter,
            "division": division_of(said, run.recipe),
            "status": said.status,
            "platform": said.platform or f"{ranks}x{device}",
            "accelerators": ranks,
        },
        cache_cleared=said.cache_cleared,
        mllog=workload.log_facts(run),
        weights=workload.log_tensors(parameters),
        accuracy=workload.log_accuracy,
    )
