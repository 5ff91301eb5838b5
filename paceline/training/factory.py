"""Build the model and the state that trains it, on this rank's device; and find the file that first weights come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline._utils.errors import CheckpointError
from paceline._utils.reporter import Reporter
from paceline.config.model_card import has_card, read_card
from paceline.config.plan import BatchPlan
from paceline.config.recipe import Recipe
from paceline.config.run import NONE, RunSpec, get_initial_weights
from paceline.distributed.comm.world import DistContext
from paceline.models.backbones.base import get_lr_factors
from paceline.models.dummy_data import HASH
from paceline.models.layers.batch_norm import configure_batch_norm
from paceline.models.registry import get_workload
from paceline.models.task import Task
from paceline.models.weights.download import cached_weights, download_to_cache, is_published
from paceline.training.checkpoint.layout import BEST, INDEX, LAST, STATE, resolve_link
from paceline.training.checkpoint.read import SUFFIX, check_file, load_checkpoint_with_retry, read_facts, read_index
from paceline.training.loss_normalization import configure_loss_groups
from paceline.training.meters import Meters
from paceline.training.optim import make_optimizer
from paceline.training.optim.base import list_named_parameters
from paceline.training.optim.ema import EMA
from paceline.training.optim.step_scalars import LossScaler
from paceline.training.previous_run import SavedRun
from paceline.training.rank_consistency import checkpoint_fingerprint, weight_fingerprint
from paceline.training.request import Request, check_weights_named
from paceline.training.resume import ResumePoint
from paceline.training.state import State

if TYPE_CHECKING:
    from paceline.models.weights.classes import Labels

# First scale of a dynamic fp16 loss scale (torch.amp.GradScaler's).
FIRST_LOSS_SCALE = 65536.0


def build_model(task: Task, run: RunSpec, world: DistContext, *, trains: bool = True) -> nn.Module:
    """The task's freshly initialized model on this rank's device, laid out and cut as the plan says.

    world   the ranks that train together, or those that only evaluate
    trains  whether this rank is one of those that train
    """
    system, plan = run.system, run.plan
    model = task.build(world.device)
    if system.channels_last != "off":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    configure_splitting(model, plan, world, trains=trains)
    return model


def configure_splitting(model: nn.Module, plan: BatchPlan, world: DistContext, *, trains: bool = True) -> None:
    """Make a model's statistics and losses span the plan's images. Every rank calls it; world, trains: see `build_model`."""
    # NCCL founds groups with all ranks at once, also with those that do not need one.
    join_group = world.new_groups(plan.bn_ranks, uneven=not trains)
    if not trains:
        return
    configure_batch_norm(
        model, groups=plan.bn_groups, join=plan.bn_ranks, join_group=join_group, forwards=plan.micro_batches
    )
    if plan.loss_normalizer_images:
        configure_loss_groups(model, plan)


def build_state(model: nn.Module, run: RunSpec, world: DistContext) -> State:
    """Fresh optimizer, average and the rest, for a model that has its first weights: the average is a copy of these."""
    recipe, system = run.recipe, run.system
    optim = recipe.optim
    parameters = list_named_parameters(
        model, optim.no_decay, bias_lr_factor=optim.bias_lr_factor, factors=get_lr_factors(model, optim)
    )
    optimizer = make_optimizer(parameters, optim)
    scaler = None
    if system.precision == "fp16":
        kind = "static" if system.loss_scale else "dynamic"
        scaler = LossScaler(kind, system.loss_scale or FIRST_LOSS_SCALE, device=world.device)
    average = EMA(model) if recipe.ema_decay else None
    return State(model, optimizer, average, scaler, Meters(world.device))


def find_weights_file(name: str, *, pickles: bool = False) -> Path:
    """The file that --weights names: itself, or a checkpoint folder's model (its average where weights were averaged).

    A run's folder is its best checkpoint, or its last where none was evaluated yet.

    A checkpoint's file is compared with its checksum, also where it is named itself; other files have none.
    pickles   whether pickled arrays are allowed too, for `paceline weights` alone
    Raises CheckpointError for a damaged checkpoint, for a run without any, and as `detect_format`: a file that is refused by its
    kind or size is not read for a checksum.
    """
    path = resolve_link(Path(name).expanduser())
    if (path / "run.json").is_file():
        kept = [resolve_link(path / "checkpoints" / which) for which in (BEST, LAST)]
        path = next((folder for folder in kept if (folder / INDEX).is_file()), None)
        if path is None:
            raise CheckpointError(f"--weights {name}: the run has no checkpoint yet. Choose another run or a weight file.")
    if not (path / INDEX).is_file():
        from paceline.models.weights.formats.detect import detect_format
        from paceline.models.weights.formats.tensorflow import find_index

        check_file(path)
        detect_format(path, pickles=pickles)
        return find_index(path) or path  # of TensorFlow's several files, the one that has the others' checksums
    # A training beside this one may move `last` on: all files are read of the one that it leads to now.
    step, snapshot = load_checkpoint_with_retry(lambda: path.parent / path.readlink() if path.is_symlink() else path)
    groups = snapshot.tensors
    return step / f"{'average' if 'average' in groups else 'model'}{SUFFIX}"


def load_initial_weights(name: str, world: DistContext, reporter: Reporter) -> Path | None:
    """The file that a fresh run starts from; None where `name` is "". Published weights are downloaded into the cache.

    Rank 0 downloads them, then the first rank of each node, which finds them where nodes share the cache.
    Raises CheckpointError as `find_weights_file`, and for weights that synthetic batches trained; DataError where a download fails.
    """
    if not name:
        return None
    if is_published(name):
        if world.is_main:
            download_to_cache(name, reporter)
        world.barrier()
        if world.local_rank == 0 and not world.is_main:
            download_to_cache(name, reporter)
        world.barrier()
        return find_weights_file(str(cached_weights(name)))
    file = find_weights_file(name)
    refuse_synthetic_weights(file, name)
    return file


def choose_weights(
    request: Request, saved: SavedRun, start: ResumePoint, world: DistContext, reporter: Reporter
) -> tuple[Request, Path | None]:
    """-> (the request with the weights that the run began from, the file to read them from; None where a checkpoint has them).

    Raises RecipeError where a run would start from random values unasked, and as `load_initial_weights`.
    """
    if start.snapshot is not None:
        return replace(request, options=replace(request.options, weights=saved.weights())), None
    if saved.facts is not None:  # it was begun and has no checkpoint; of a new run `validate` has checked it
        check_weights_named(request)
    if request.options.weights == NONE:
        reporter.line(f"--weights {NONE}: training starts from random weights")
    return request, load_initial_weights(get_initial_weights(request.options), world, reporter)


def load_first_weights(
    model: nn.Module,
    task: Task,
    run: RunSpec,
    world: DistContext,
    start: ResumePoint,
    weights: Path | None,
    reporter: Reporter,
) -> None:
    """Random weights, alike on all ranks, or those of --weights; a checkpoint's come later. All ranks agree on what they have."""
    if start.snapshot is None:
        world.broadcast_(model.state_dict().values())  # a user's workload may draw other weights on each rank
    if weights is not None:
        report = task.load_weights(model, weights)
        for line in report.lines():
            reporter.line(line)
        if start.snapshot is None and "fc.weight" in report.reinitialised:
            _fit_head(model, task, run, world, reporter)
    elif start.snapshot is None and not run.options.synthetic and (frozen := is_untrained(model)):
        reporter.warning(
            f"warning: {frozen} are frozen with random values and do not learn. Set --weights, or train all layers with "
            "--model.freeze-stages 0."
        )
    if world.world > 1 and start.snapshot is not None:
        world.assert_equal(checkpoint_fingerprint(start.snapshot, start.checkpoint), "weights")
    elif world.world > 1 and weights is not None:
        world.assert_equal(weight_fingerprint(model.state_dict(), "--weights"), "weights")


def _fit_head(model: nn.Module, task: Task, run: RunSpec, world: DistContext, reporter: Reporter) -> None:
    """Fit the last layer to the training photos where the recipe wants that: on rank 0, for all."""
    if getattr(run.recipe.model, "head_init", "random") != "linear-probe" or run.options.synthetic:
        return
    from paceline.models.resnet.task import fit_linear_probe  # detectors do without a classifier's code

    reporter.doing("fitting the last layer to the training images")
    if world.is_main:
        reporter.line(fit_linear_probe(task.data, model))  # type: ignore[arg-type]  # only classifiers have the field
    world.broadcast_(model.state_dict().values())


def check_weights(name: str, recipe: Recipe, classes: int, labels: Labels | None, reporter: Reporter) -> None:
    """Load what --weights names into a network whose own values are not drawn, and report as training does before its first step.

    classes, labels  of the data; 0 and None where they are not open
    Published weights that are not in the cache are not brought: a line says so. Raises CheckpointError as `load_initial_weights`,
    and where they do not fit.
    """
    published = is_published(name)
    if published and not cached_weights(name).is_file():
        reporter.line(f"--weights {name}: not in the cache. `train` downloads the file and then checks that it fits.")
        return
    file = find_weights_file(str(cached_weights(name)) if published else name)
    refuse_synthetic_weights(file, name)
    workload = get_workload(recipe.task)
    network = workload.network.build(recipe, classes or workload.classes)
    from paceline.models.weights.classes import Labels

    for line in workload.network.load_weights(network, file, labels or Labels(())).lines():
        reporter.line(line)


def is_untrained(model: nn.Module) -> str:
    """The parts of a model whose parameters do not train, in words; "" where all do."""
    names = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    parts = dict.fromkeys(name.removeprefix("network.").partition(".")[0] for name in names)
    return f"{len(names)} tensors ({', '.join(parts)})" if names else ""


def refuse_synthetic_weights(file: Path, name: str) -> None:
    """Raises CheckpointError for a file of a checkpoint that synthetic batches trained; name: as --weights has it."""
    folder = file.parent
    is_checkpoint = all((folder / part).is_file() for part in (INDEX, STATE))
    synthetic = is_checkpoint and read_facts(folder, read_index(folder)).get("data_hash") == HASH
    if synthetic or (has_card(file) and read_card(file)["options"]["synthetic"]):
        raise CheckpointError(f"--weights {name}: the run was trained on synthetic batches. Choose a run with real data.")
