"""Before a run's clock starts: steps that are thrown away, on made-up photos.

Where a step's first input of a new shape is compiled, captured or searched for, each shape of the run has its own, the largest first:
what memory is needed at most is then allocated at once. Elsewhere one does, where it has a use: it connects ranks, settles in which
order data parallel adds gradients, and shows what the largest shape of a run takes.
"""

from __future__ import annotations

import time
from functools import partial

from paceline.accelerators import peak_memory, synchronise
from paceline.machine.compiler import allow_forms, compilations
from paceline.ranks.exchange import smallest
from paceline.tasks.memory import MemoryEstimate
from paceline.tasks.task import each_shape_counts
from paceline.training.job import Job
from paceline.training.step import TrainStep


def warm_up(job: Job, step_once: TrainStep) -> None:
    """Take the run's discarded steps, and write down what they took where there is one for each shape. All ranks call it."""
    run, task, device = job.run, job.task, job.place.device
    if job.state.step >= job.due.last_step:
        return
    if not each_shape_counts(run.system, device):
        if run.plan.world > 1 or task.shapes.vary:
            step_once.discard(task.warm_up_step(run.plan, device), update=False)
        return
    began, compiled = time.monotonic(), compilations()
    shapes = task.input_shapes(run.plan)
    if run.system.compile:
        allow_forms(len(shapes))
    steps = [partial(task.warm_up_step, run.plan, device, shape) for shape in shapes]
    for number, made_up in enumerate(steps, start=1):
        job.recorder.doing(f"warming up {number} of {len(shapes)} shapes")
        step_once.warm_up(made_up())
    # What a captured step holds stays taken, so none is captured before all are warmed up.
    for number, made_up in enumerate(steps if run.system.graph else (), start=1):
        job.recorder.doing(f"capturing {number} of {len(shapes)} shapes")
        step_once.prepare(made_up())
    synchronise(device)
    facts = {"compilations": compilations() - compiled, "captures": step_once.captures}
    if device.type != "cpu":  # of a CPU all that is known is what the process has held, of which a step is a part
        facts["peak_memory"] = -smallest(job.world, -peak_memory(device))
    job.recorder.warmed_up(
        job.state.step,
        job.clock.seconds(),
        shapes=len(shapes),
        warm_up_seconds=time.monotonic() - began,
        images_per_forward=run.plan.images_per_forward,
        memory_estimate=MemoryEstimate(**run.provenance["memory_estimate"]).total(run.plan.images_per_forward),
        **facts,
    )
