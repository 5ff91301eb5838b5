"""Recipes of the small trainings, in a file of one's own: what the shipped recipes are tuned to does not matter here."""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from paceline.config.recipe import Evaluation, Optim, Recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.config.schedule import Schedule
from paceline.models.resnet.workload import RESNET, ResNetNetwork
from paceline.models.workload import WorkloadSpec

STEPS = 30


def small() -> Recipe[ResNetModel, ImageInput]:
    """Thirty steps of twelve photos of 32 pixels.

    Ranks that share BatchNorm's statistics exchange them in each norm, forward and backward, and take three times as long: only
    where that is tested, bn_batch_size is smaller than the six images of one of two ranks.
    """
    return Recipe(
        task="classification",
        model=ResNetModel(depth=10, width=8),
        input=ImageInput(image_size=32, crop_scale=(0.35, 1.0), eval_resize_size=36, eval_crop_size=32),
        target_data="none",
        global_batch_size=12,
        max_images=12 * STEPS,
        bn_batch_size=6,
        optim=Optim(lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4, no_decay="norm-and-bias"),
        schedule=Schedule(name="constant"),
        eval=Evaluation(unit="fraction"),
    )


def smooth() -> Recipe[ResNetModel, ImageInput]:
    """Fifty steps of 64 photos through a network without kinks.

    At a ReLU's kink the gradient jumps, so that rounding of 1e-7 becomes a difference of 1e-3 within a few steps, at
    random; with SiLU it stays at 1e-7, and whatever is larger is an error.
    """
    return replace(
        small(),
        task=f"{__file__}:SMOOTH",
        model=ResNetModel(depth=10, width=8, stem="small"),
        input=ImageInput(image_size=16, crop_scale=(0.35, 1.0), eval_resize_size=36, eval_crop_size=32),
        global_batch_size=64,
        max_images=50 * 64,
        bn_batch_size=16,
        optim=Optim(lr=0.01, momentum=0.9, weight_decay=5e-4),
    )


class Smooth(ResNetNetwork):
    """The classifier with SiLU in every ReLU's place."""

    def build(self, recipe, classes):
        from torch import nn

        model = super().build(recipe, classes)
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.ReLU):
                    setattr(module, name, nn.SiLU())
        return model


SMOOTH = replace(RESNET, network=Smooth())


def watched() -> Recipe[ResNetModel, ImageInput]:
    """The small recipe; RUN.touchedRANK gets a line "milliseconds,started" when the process or a worker opens a training image."""
    run = Path(sys.argv[sys.argv.index("--output-dir") + 1])
    file = f"{run}.touched{os.environ.get('RANK', 0)}"

    def look(event: str, arguments: tuple) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes):
            return
        path = os.fsdecode(arguments[0])
        if "/train/" in path and path.endswith(".jpg"):
            log = run / "mllog.txt"
            started = log.exists() and '"run_start"' in log.read_text()
            touched = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(touched, f"{time.time_ns() // 10**6},{int(started)}\n".encode())
            os.close(touched)

    sys.addaudithook(look)
    return small()


def built_slowly() -> Recipe[ResNetModel, ImageInput]:
    """The small recipe, whose network takes a while to build."""
    return replace(small(), task=f"{__file__}:BUILT_SLOWLY")


class BuiltSlowly(ResNetNetwork):
    """The classifier, 0.3 seconds later."""

    def build(self, recipe, classes):
        time.sleep(0.3)
        return super().build(recipe, classes)


BUILT_SLOWLY = replace(RESNET, network=BuiltSlowly())


def on_disks_of_their_own() -> Recipe[ResNetModel, ImageInput]:
    """The small recipe, of whose run rank 1 sees other checkpoints: RUN.rank1, as if its host had a disk of its own."""
    import paceline.training.resume as start

    if os.environ.get("RANK") == "1":
        ours = start.find_newest_valid
        start.find_newest_valid = lambda folder, *more: ours(beside_run("rank1"), *more)
    return small()


def drawn_by_rank() -> Recipe[ResNetModel, ImageInput]:
    """The small recipe with an average of the weights, in a network that every rank draws by itself."""
    return replace(small(), task=f"{__file__}:DRAWN_BY_RANK", ema_decay=0.999, eval=Evaluation())


def drawn_alike() -> Recipe[ResNetModel, ImageInput]:
    """The same; all ranks draw as rank 0 does there."""
    return replace(drawn_by_rank(), task=f"{__file__}:DRAWN_ALIKE")


class Drawn(ResNetNetwork):
    """A network initialized by `drawn` in place of the recipe's seed."""

    def __init__(self, drawn=0):
        self.drawn = drawn

    def initialize(self, recipe, model, generator):
        super().initialize(recipe, model, generator.manual_seed(self.drawn))


DRAWN_BY_RANK, DRAWN_ALIKE = (replace(RESNET, network=Drawn(seed)) for seed in (int(os.environ.get("RANK", 0)), 0))


def beside_run(suffix: str) -> Path:
    """A file beside the run's folder."""
    return Path(f"{sys.argv[sys.argv.index('--output-dir') + 1]}.{suffix}")


def troubled() -> Recipe[ResNetModel, ImageInput]:
    """The small recipe, in whose input path and scorer something happens (see `open_troubled`)."""
    return replace(small(), task=f"{__file__}:TROUBLED")


def open_troubled(workload, recipe, manifest, **limits):
    """Classification in which, on the last rank, what the file RUN.trouble says happens, as long as it is there.

    "leave read", "leave score"  sys.exit(0) where a photo is read, or a score made
    "memory"                     a photo asks for more memory than any machine has
    "addresses"                  this process gets no more addresses once training has read 60 photos
    "addresses at once"          100 MiB more than it has when the task is opened
    """
    import torch

    task = WorkloadSpec.open(workload, recipe, manifest, **limits)
    order = beside_run("trouble")
    here = int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1
    draw_train, summarize = task.data.draw_train, task.evaluator.summarize
    photos = 0

    def limit(more: int) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

    def ordered() -> str:
        return order.read_text() if here and order.exists() else ""

    def draw(fit, epoch, index, header, name):
        nonlocal photos
        photos += 1
        if ordered() == "leave read" and photos > 30:
            sys.exit(0)
        if ordered() == "memory" and photos > 60:
            torch.empty(2**50)
        if ordered() == "addresses" and photos == 60:
            limit(0)
        return draw_train(fit, epoch, index, header, name)

    def score(packed):
        if order.exists() and order.read_text() == "leave score":
            sys.exit(0)
        return summarize(packed)

    if ordered() == "addresses at once":
        limit(100 * 2**20)
    task.data.draw_train, task.evaluator.summarize = draw, score
    return task


class Troubled(WorkloadSpec):
    """See `open_troubled`."""

    open = open_troubled


TROUBLED = Troubled(**vars(RESNET))


def scored_slowly() -> Recipe[ResNetModel, ImageInput]:
    """The small recipe, whose scorer, or its training, waits for what the test tells it (see `open_scored_slowly`)."""
    return replace(small(), task=f"{__file__}:SCORED_SLOWLY")


def open_scored_slowly(workload, recipe, manifest, **limits):
    """Classification whose `summarise` obeys the file RUN.scorer beside the run's folder, as long as it is there.

    "past N"  wait until training has begun a step after the Nth, and fail where it never does
    "hold N"  an evaluation at step N or later waits until the file is gone
    "fail"    raise
    "look N"  no validation photo is drawn at step N or later until the file is gone
    "step N"  no step after the Nth is begun until the file is gone
    RUN.scoring is there once somebody has waited. A rank that only evaluates reads in RUN.begun how far training is.
    """

    task = WorkloadSpec.open(workload, recipe, manifest, **limits)
    orders, waiting, progress = beside_run("scorer"), beside_run("scoring"), beside_run("begun")
    summarize, train_loader, draw_val = task.evaluator.summarize, task.data.train_loader, task.data.draw_val
    begun = 0

    @contextmanager
    def counted_loader(*arguments, **more):
        with train_loader(*arguments, **more) as loader:
            yield Counted(loader)

    class Counted:
        def __init__(self, loader):
            self.loader = loader

        @property
        def wait_seconds(self):
            return self.loader.wait_seconds

        def __iter__(self):
            nonlocal begun
            for step, batches in self.loader:
                wait_while("step", step)
                begun = step + 1
                if os.environ.get("RANK", "0") == "0":
                    progress.write_text(str(begun))
                yield step, batches

    def reached() -> int:
        return begun or int((progress.read_text() if progress.exists() else "") or 0)

    def ordered() -> tuple[str, int]:
        """The order's word and number."""
        try:
            what, _, number = orders.read_text().partition(" ")
        except FileNotFoundError:
            return "", 0
        return what, int(number or 0)

    def wait_while(what: str, step: int) -> None:
        until = time.monotonic() + 20
        while (order := ordered())[0] == what and step >= order[1]:
            waiting.touch()
            assert time.monotonic() < until, "nobody took the order back"
            time.sleep(0.01)

    def draw(*arguments):
        wait_while("look", reached())
        return draw_val(*arguments)

    def obedient(packed):
        what, number = ordered()
        if what == "fail":
            raise RuntimeError("the scorer fails, as it was told")
        until = time.monotonic() + 20
        while (what == "past" and reached() <= number) or (what == "hold" and reached() >= number and orders.exists()):
            waiting.touch()
            assert time.monotonic() < until, f"no training beside scoring: step {reached()} was the last"
            time.sleep(0.01)
        return summarize(packed)

    task.evaluator.summarize, task.data.train_loader, task.data.draw_val = obedient, counted_loader, draw
    return task


class ScoredSlowly(WorkloadSpec):
    """See `open_scored_slowly`."""

    open = open_scored_slowly


SCORED_SLOWLY = ScoredSlowly(**vars(RESNET))


def lagging() -> Recipe[ResNetModel, ImageInput]:
    """The small recipe, in which the last rank takes a nap in each forward."""
    return replace(small(), task=f"{__file__}:LAGGING")


class Lagging(ResNetNetwork):
    """The classifier; on the last rank its forward takes a fifth of a second longer."""

    def build(self, recipe, classes):
        model = super().build(recipe, classes)
        if int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1:
            model.register_forward_pre_hook(lambda *_: time.sleep(0.2))
        return model


LAGGING = replace(RESNET, network=Lagging())
