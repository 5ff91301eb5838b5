"""The fourth stage: the network is built, has its weights on every rank, and a step of it fits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from paceline.config.run import Run
from paceline.training.alike import checkpoint_facts, run_facts, weight_facts
from paceline.training.building import build_model, build_state, untrained
from paceline.training.opened import Opened
from paceline.training.plan_text import in_roles
from paceline.training.settling import tell_short_average
from paceline.training.start import check_start
from paceline.training.state import State
from paceline.training.trying import run_that_fits, worth_trying


@dataclass(frozen=True)
class Built:
    """A run that can take its next step."""

    opened: Opened
    run: Run  # its forwards are as small as memory wants them
    state: State


def build(opened: Opened) -> Built:
    """Raises UserError where the run does not go on from its checkpoint, weights do not fit, or ranks hold other ones."""
    settled, run, task = opened.settled, opened.run, opened.task
    asked, start, roles = settled.asked, settled.start, settled.asked.roles
    world = asked.world
    asked.console.doing("building the model")
    check_start(settled.folder.saved, start, run, asked.request.given)
    world.agree(run_facts(run, start.checkpoint, settled.weights), "run")
    if roles.evaluators:
        asked.say(in_roles(run.plan))
    model = build_model(task, run, roles.peers, trains=not roles.evaluates)
    _fill(model, opened)
    state = build_state(model, run, roles.peers)
    settled.folder.check_space(state, run.controls.keep)
    if start.snapshot is not None and not roles.evaluates:  # those are handed what they evaluate
        state.restore(start.snapshot, roles.peers)
    if worth_trying(world.device):
        asked.console.doing("trying a step")
        run = run_that_fits(run, task, state, roles, world.device, asked.say)
    roles.meet()
    if state.step < run.plan.stop_after:  # else the run stands further than this command asks, and only ends
        tell_short_average(run, asked.say)
    return Built(opened, run, state)


def _fill(model: nn.Module, opened: Opened) -> None:
    """First weights, those of --weights where they are named; what a checkpoint has comes later. The ranks agree on them."""
    settled, task = opened.settled, opened.task
    asked, start, weights = settled.asked, settled.start, settled.weights
    world = asked.world
    if start.snapshot is None:
        world.broadcast_(model.state_dict().values())  # what a workload of one's own draws may differ by rank
    if weights is not None:
        for line in task.load_weights(model, weights).lines():
            asked.say(line)
    elif start.snapshot is None and not opened.run.controls.synthetic and (frozen := untrained(model)):
        asked.warn(
            f"{frozen} do not train and keep random values: nothing is learned there. Name --weights, or let all parts train "
            "(--model.frozen none)"
        )
    if world.world > 1 and start.snapshot is not None:
        world.agree(checkpoint_facts(start.snapshot, start.checkpoint), "weights")
    elif world.world > 1 and weights is not None:
        world.agree(weight_facts(model.state_dict(), "--weights"), "weights")
