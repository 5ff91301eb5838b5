"""Photos through an exported graph, read as `predict` reads them, and scored as a run's answers are: `eval FILE.onnx`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paceline._utils.platform import count_cpus
from paceline.data.batch import Batch, DetectedInstances
from paceline.data.index.index import Index
from paceline.data.workers.crew import map_ordered
from paceline.distributed.comm.world import DistContext
from paceline.inference.graph.graph_model import GraphInput, GraphModel, Outputs, to_network_detections
from paceline.models.task import EvalResult, Task
from paceline.training.evaluate import EvalPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def evaluate_file(
    opened: GraphModel, task: Task, *, key: str, batch: int, world: DistContext, passed: Callable[[int], None], **_: Any
) -> EvalResult:
    """As `training.evaluate.evaluate`, in one process. Raises DataError for a photo that cannot be decoded."""
    score, index = task.evaluator.new_score(), task.data.val_index

    cores, portable = count_cpus(), index.records.portable
    photo = partial(_read, opened.reader(), index)
    read = map_ordered(task.data.val_numbers.tolist(), photo, size=cores, ahead=batch + cores, processes=portable)
    while part := list(islice(read, batch)):
        numbers = np.array([number for number, _ in part])
        photos = [photo for _, photo in part]
        labels = index.labels[numbers].astype(np.int64)
        none = torch.zeros(len(part), 3, 1, 1)  # pixels, which no score reads
        images = Batch(none, torch.from_numpy(labels), torch.from_numpy(numbers))
        score.add(images, _as_network(opened.outputs(photos), photos))
        passed(len(part))
    return EvalPass(task.evaluator, world, score, key).result()


def _read(read: Callable[[bytes, str], tuple[Any, GraphInput]], index: Index, number: int) -> tuple[int, GraphInput]:
    return number, read(index.read(number), index.name(number))[1]


def _as_network(outputs: Sequence[Outputs], photos: Sequence[GraphInput]) -> Tensor | DetectedInstances:
    """What the network itself would give: logits of classes, or objects in fractions of the photo."""
    if len(outputs[0]) == 1:
        return torch.from_numpy(np.stack([one[0] for one in outputs])).log()
    result = np.stack([to_network_detections(one, photo.size) for one, photo in zip(outputs, photos)])
    masks = torch.from_numpy(np.stack([one[3] for one in outputs])) if len(outputs[0]) == 4 else None
    return DetectedInstances(torch.from_numpy(result), masks)
