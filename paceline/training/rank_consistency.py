"""The facts that must be alike on all ranks of a run: code, versions, and whatever decides its result. World.agree compares them.

What may differ is left out: paths (data and weights are compared by content, and rank 0 alone decides where the run's folder is),
what rank 0 alone does, and a machine's memory, which counts in the Plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline._utils.hashing import file_sha256
from paceline._utils.names import flatten
from paceline._utils.user_code import find_imported_files, is_in_file
from paceline._utils.version import PACKAGE
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, RunSpec
from paceline.config.system import System
from paceline.distributed.comm.consistency import hash_facts
from paceline.distributed.device.provenance import collect_versions
from paceline.models.task import Task
from paceline.training.checkpoint.write import Snapshot

# Controls that only rank 0 uses, or that name a place.
FREE_CONTROLS = (
    *("data", "output_dir", "copy_data_to", "weights", "keep_checkpoints", "keep_checkpoint_every"),
    *("profile", "quiet", "json", "logger", "tensorboard"),
    "mlperf",
)
FREE_SYSTEM = ("memory_gib",)
FREE_DATA = ("root", "manifest")
# Flags that change a run by being given, not only by their value; those of `eval` and `target` count too (request_facts).
GIVEN = ("system", "system.intra_op_threads", "data", "epochs", "max_images")


def request_fingerprint(
    verb: str, recipe: Recipe, system: System, options: RunOptions, *, explicit: Iterable[str] = (), **more: Any
) -> dict[str, Any]:
    """Facts of a rank before it has met the others: its code, and its request.

    explicit  dotted names of the flags set by hand
    more   further facts of the verb, by name
    """
    return {
        "verb": verb,
        **{f"version of {name}": version for name, version in collect_versions().items()},
        **source_digests(PACKAGE, recipe),
        **_as_flags(asdict(recipe)),
        **_as_flags(_without(asdict(system), FREE_SYSTEM), "system."),
        **_as_flags(_without(asdict(options), FREE_CONTROLS)),
        **more,
        "--copy-data-to": "given" if options.copy_data_to else "not given",
        "flags given": sorted(name for name in explicit if name in GIVEN or name.partition(".")[0] in ("eval", "target")),
    }


def data_fingerprint(task: Task) -> dict[str, Any]:
    """Facts of a rank once its data is open."""
    counts = {"train_images": task.data.train_images, "val_images": task.data.val_images}
    return _as_flags({**counts, **_without(task.facts, FREE_DATA), "classes": list(task.data.classes)}, "data.")


def run_facts(run: RunSpec, checkpoint: str, weights: Path | None) -> dict[str, Any]:
    """Facts of a rank before it builds the model.

    checkpoint  name of the one that the run resumes from; empty for a fresh run
    weights     file or folder that a fresh run starts from
    """
    classes: tuple[tuple[str, ...], ...] = ()
    if weights is not None:
        from paceline.models.weights.weight_file import read_run_class_names

        classes = read_run_class_names(weights)
    return {
        **_as_flags(asdict(run.recipe)),
        **_as_flags(_without(asdict(run.system), FREE_SYSTEM), "system."),
        **_as_flags(asdict(run.plan), "plan."),
        "compute threads": run.provenance["threads"]["intra_op"],
        "checkpoint": checkpoint,
        "class names of --weights": ", ".join(map("/".join, classes)),
    }


def weight_fingerprint(tensors: Mapping[str, Tensor], source: str) -> dict[str, Any]:
    """A digest of every tensor, once the weights are loaded; source: of the weights, in words that are alike on all ranks."""
    return {f"SHA-256 of {name} from {source}": tensor_digest(tensor) for name, tensor in tensors.items()}


def checkpoint_fingerprint(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """Digests of the checkpoint that the run resumes from: all tensors, every rank's own statistics among them, and its facts."""
    tensors = {f"{group}.{key}": one for group, ones in snapshot.tensors.items() for key, one in ones.items()}
    return {**weight_fingerprint(tensors, name), f"SHA-256 of the facts in {name}": hash_facts(snapshot.facts)}


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's type, shape and values, in the order of its indices, not of memory."""
    plain = tensor.detach().cpu().contiguous()
    result = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
    result.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()


def source_digests(package: Path, recipe: Recipe) -> dict[str, str]:
    """Digests of every file of the package, a user's workload, and what that imports: a version number is not enough."""
    result = {
        f"SHA-256 of paceline/{path.relative_to(package).as_posix()}": file_sha256(path)
        for path in sorted(package.rglob("*.py"))
    }
    if is_in_file(recipe.task):
        file = Path(recipe.task.rpartition(":")[0]).expanduser().resolve()
        result["SHA-256 of the task's file"] = file_sha256(file)
        for name, helper in find_imported_files(file).items():
            result[f"SHA-256 of {name} (imported by the task's file)"] = file_sha256(helper)
    return result


def _without(facts: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in names}


def _as_flags(facts: Any, above: str = "") -> dict[str, Any]:
    """Nested facts by their dotted names, spelt as the flags are: optim.lr, eval-every."""
    return {name.replace("_", "-"): value for name, value in flatten(facts, above).items()}
