"""From a recipe and a data set to a task: what can be refused at once, preparing where nothing is prepared yet, opening.

Reading this file takes no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.errors import RecipeError, UserError
from paceline.config.recipe import Recipe
from paceline.config.run import Controls
from paceline.store.containers.exports import prepare_first
from paceline.store.manifest import Kind, Manifest
from paceline.tasks.workloads import workload_of

if TYPE_CHECKING:
    from paceline.ranks.world import World
    from paceline.tasks.task import Task
    from paceline.tasks.workload import Workload

Say = Callable[[str], None]


def check_request(recipe: Recipe, data: str, *, scored: bool = False) -> None:
    """Refuse what can be refused before anything is opened.

    data    as Controls.data
    scored  whether the data are only scored on
    Raises RecipeError for an unknown task or a recipe that cannot be, UserError for a data folder that is not there.
    """
    workload = _checked(recipe)
    if data:
        data_folder(data, workload, scored=scored)


def open_task(
    recipe: Recipe,
    controls: Controls,
    world: World,
    *,
    say: Say,
    prepared: Callable[[], None] = lambda: None,
    manifest: Manifest | None = None,
) -> Task:
    """The recipe's task on the asked data, which the first rank of each node prepares where they are not.

    prepared  called when that is done, before anything is opened or built
    manifest  of data to score on, which is prepared already; None: the training data that `controls` names
    Raises RecipeError for an unknown task, a recipe that cannot be or a decoder that is not installed, DataError for data that
    cannot be used.
    """
    workload = _checked(recipe)
    if controls.synthetic:
        from paceline.tasks.synthetic import SyntheticTask

        say(
            "synthetic batches: no data is read, nothing is scored, no target can be reached; only the speed means anything"
        )
        prepared()
        return SyntheticTask(workload, recipe, limit_train=controls.limit_train)
    from paceline.input.decode import require_decoder

    require_decoder(recipe.input.decoder)
    if manifest is None:
        root = data_folder(controls.data, workload) if controls.data else built_in(workload.kind, say)
        manifest = prepared_once(world, lambda: _prepared(workload.kind, root, say))
    prepared()
    return workload.open(recipe, manifest, limit_train=controls.limit_train, limit_val=controls.limit_val)


def _checked(recipe: Recipe) -> Workload:
    """The recipe's workload. Raises RecipeError for a recipe that cannot be, or was written for another workload."""
    workload = workload_of(recipe.task)
    for part, given, wanted in (("model", recipe.model, workload.model), ("input", recipe.input, workload.input)):
        if not isinstance(given, type(wanted)):
            raise RecipeError(
                f"--task {recipe.task}: its {part} is a {type(wanted).__name__}, this recipe's a {type(given).__name__}. "
                "Choose a recipe of that workload: paceline list recipes"
            )
    workload.check(recipe)
    return workload


def prepared_once(world: World, prepare: Callable[[], Path]) -> Manifest:
    """The manifest in the folder that `prepare` returns; each node's first rank prepares, the others find it done."""
    if world.local_rank == 0:
        prepare()
    world.barrier()
    return Manifest.load(prepare())


def data_folder(data: str, workload: Workload, *, scored: bool = False) -> Path:
    """The folder that --data names. Raises UserError, with what the workload's data folder holds, where it is not there."""
    root = Path(data).expanduser()
    if not root.is_dir():
        if first := prepare_first(data, scored=scored):
            raise UserError(f"--data {data}: {first}")
        raise UserError(f"--data {data}: there is no such folder. Name one that holds {workload.data}.")
    return root


def built_in(kind: Kind, say: Say) -> Path:
    """The folder of the built-in shapes, rendered into the cache on first use."""
    from paceline.datasets.shapes.render import shapes_folder

    started: list[int] = []

    def tell(done: int, total: int) -> None:
        if not started:
            say(f"rendering the built-in shapes ({total:,} pictures, once) into the cache")
            started.append(done)

    return shapes_folder("classes" if kind == "class-folder" else "boxes", progress=tell)


def _prepared(kind: Kind, root: Path, say: Say) -> Path:
    """The folder of a manifest that matches the files of `root`."""
    from paceline.datasets.ensure import ensure_prepared

    return ensure_prepared(root, kind=kind, say=say)
