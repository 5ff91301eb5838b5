"""The menu: recipes by their names on the command line; the published configurations beside them are rows (published_rows.py).

A recipe of your own needs no entry: `./my_file.py:my_recipe`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.config.recipe import Recipe
from paceline.config.recipes import maskrcnn, resnet50, ssd

RECIPES: dict[str, Callable[[], Recipe]] = {
    "resnet50": resnet50.sgd,
    "resnet50-mlperf-3200": resnet50.mlperf_3200,
    "resnet50-mlperf-3200-4x8": resnet50.mlperf_3200_4x8,
    "resnet50-mlperf-3200-8x8": resnet50.mlperf_3200_8x8,
    "resnet50-mlperf-20480": resnet50.mlperf_20480,
    "resnet50-mlperf-32256": resnet50.mlperf_32256,
    "resnet50-mlperf-57344": resnet50.mlperf_57344,
    "resnet50-a100-3264": resnet50.a100_3264,
    "resnet50-a100-3264-8x8": resnet50.a100_3264_8x8,
    "resnet50-gaudi2-2048": resnet50.gaudi2_2048,
    "classify-finetune": resnet50.finetune,
    "classify-finetune-cpu": resnet50.finetune_cpu,
    "classify-demo": resnet50.demo,
    "ssd": ssd.mlperf,
    "ssd-mlperf-448": ssd.mlperf_448,
    "ssd-mlperf-512": ssd.mlperf_512,
    "ssd-mlperf-896": ssd.mlperf_896,
    "ssd-mlperf-912": ssd.mlperf_912,
    "ssd-mlperf-1024": ssd.mlperf_1024,
    "ssd-mlperf-1024-dss8440": ssd.mlperf_1024_dss8440,
    "ssd-mlperf-1536": ssd.mlperf_1536,
    "ssd-mlperf-2048": ssd.mlperf_2048,
    "ssd-gaudi": ssd.gaudi,
    "ssd-gaudi-1024": ssd.gaudi_1024,
    "ssd-gaudi-cosine": ssd.gaudi_cosine,
    "ssd-finetune": ssd.finetune,
    "ssd-finetune-cpu": ssd.finetune_cpu,
    "ssd-demo": ssd.demo,
    "maskrcnn": maskrcnn.mlperf,
    "maskrcnn-nvidia-96": maskrcnn.nvidia_96,
    "maskrcnn-nvidia-256": maskrcnn.nvidia_256,
    "maskrcnn-nvidia-256-48nodes": maskrcnn.nvidia_256_48nodes,
    "maskrcnn-gluoncv": maskrcnn.gluoncv,
    "maskrcnn-gluoncv-192": maskrcnn.gluoncv_192,
    "maskrcnn-finetune": maskrcnn.finetune,
    "maskrcnn-finetune-cpu": maskrcnn.finetune_cpu,
    "maskrcnn-demo": maskrcnn.demo,
    "fasterrcnn": maskrcnn.boxes,
    "fasterrcnn-finetune": maskrcnn.finetune_boxes,
    "fasterrcnn-finetune-cpu": maskrcnn.finetune_cpu_boxes,
}
# First part of the names of our own recipes -> the recipe of their network, where the two differ.
NETWORKS = {"classify": "resnet50"}
# Task -> its recipe of the published network.
OF_TASK = {"detection": "ssd", "instance-segmentation": "maskrcnn"}
# Ending of a name -> what such recipes are for; the menus are in this order.
GROUPS = {
    "-finetune": "for your own data",
    "-finetune-cpu": "for your own data, on a CPU",
    "-demo": "small, from scratch",
    "": "as published, or for all of ImageNet or COCO",
}


def group_recipes() -> dict[str, str]:
    """Recipe -> what it is for, those for own data first."""
    of = {name: next(end for end in GROUPS if name.endswith(end)) for name in RECIPES}
    return {name: GROUPS[of[name]] for name in sorted(RECIPES, key=lambda name: list(GROUPS).index(of[name]))}


def find_finetune_recipe(name: str) -> str:
    """The name of the recipe that fine-tunes a recipe's kind of network on your own images: resnet50-mlperf-3200 -> classify-finetune.

    For a name that is not in the menu, the result is not in it either.
    """
    first = re.split("[-@]", name)[0]
    return f"{next((own for own, network in NETWORKS.items() if network == first), first)}-finetune"


def find_base(name: str, task: str) -> str:
    """The recipe of the menu that another one is built on, by its name: ssd-finetune-cpu on ssd-finetune, ssd@dell-dgx1-1024 on ssd.

    task   its workload, whose recipe is taken where no beginning of the name is a recipe's
    return "" where there is none
    """
    parts = re.split("[-@]", name)
    before = [name[: len("-".join(parts[:count]))] for count in range(len(parts) - 1, 0, -1)]
    return next(
        (one for one in (*before, NETWORKS.get(parts[0], OF_TASK.get(task, ""))) if one in RECIPES and one != name), ""
    )
