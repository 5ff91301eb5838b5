"""What only accelerators need: one number of object slots a run, tensors that a kernel can count, no compile and no exact form
where a task has none. No accelerator is needed to look: the meta device stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from by_night import ONE_MORE
from instance_sets import make_instances
from lazy_streams import LazyStreams

import paceline.data.loader.loader as loader_module
from paceline._utils.errors import RecipeError
from paceline._utils.reporter import SILENT, Lines
from paceline.config.plan import make_plan
from paceline.config.recipe import DATA_IMAGES, override
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.data.batch import count_bytes
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.distributed.device.systems import h200x8
from paceline.models import memory_estimate as memory_module
from paceline.models.memory_estimate import COUNTABLE, MemoryEstimate, estimate_recipe_memory, max_images_per_forward
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank, Task
from paceline.training.resolve import resolve_system


def memory_of_network(recipe, system, classes=0):
    return estimate_recipe_memory(WORKLOADS[recipe.task], recipe, system, classes)


H200 = replace(h200x8(), memory_gib=139.7)
# Of the photos below, an image has three objects at most; as if one that is not drawn had twenty.
MAX, SLOTS = 20, 32


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Iterator[list[Task]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        root: Path = make_instances(tmp_path_factory.mktemp("photos") / "set", train=8, val=2)
        manifest = Manifest.load(prepare_if_needed(root, kind="boxes"))
        ssd = WORKLOADS["detection"]
        small = {"global_batch_size": 2, "optim.lr": 0.01, "bn_batch_size": 1}
        found = [
            ssd.open(override(RECIPES["ssd-demo"](), {**small, "input.image_size": 96}), manifest),
            WORKLOADS["instance-segmentation"].open(
                override(RECIPES["maskrcnn-demo"](), {**small, "input.min_size": (64,)}), manifest
            ),
        ]
        assert [task.data.max_objects for task in found] == [3, 3]
        for task in found:
            task.data.max_objects = MAX
        yield found


@pytest.mark.parametrize(
    ("device", "compiled", "wanted"), [("meta", False, {SLOTS}), ("cpu", False, {8}), ("cpu", True, {SLOTS})]
)
def test_where_a_new_shape_costs_every_batch_has_slots_for_the_most_objects_of_the_data(tasks, device, compiled, wanted):
    system = System(compile="on" if compiled else "off")
    for task in tasks:
        plan = make_plan(
            task.recipe, System(), world=1, most=2, train_images=task.data.train_images, val_images=task.data.val_images
        )
        place, slots = InputRank(0, 1, torch.device(device), 1), set()
        with task.data.train_loader(replace(plan, stop_after=3), system, place, first=0, one_batch=False) as loader:
            for _, batches in loader:
                slots |= {batch.labels.shape[1] for batch in batches}
        assert slots == wanted
        assert batches[0].boxes.shape[:2] == batches[0].labels.shape


def test_the_step_tried_first_on_an_accelerator_has_the_shapes_of_a_run_s_steps(tasks):
    task = tasks[1]
    plan = make_plan(task.recipe, System(), world=1, most=2, train_images=8, val_images=2)
    place = InputRank(0, 1, torch.device("meta"), 1)
    with task.data.train_loader(plan, System(), place, first=0, one_batch=False) as loader:
        _, (batch, *_) = next(loader)
    tried = task.data.warm_up_batch(plan, place.device)
    for name in ("labels", "boxes", "canvases", "frames", "sizes", "keys"):
        assert getattr(tried, name).shape == getattr(batch, name).shape, name


def test_tensors_are_counted_at_the_widest_input_that_photos_can_need(tasks):
    detection, instances = tasks
    cuda, alone = System("cuda"), instances.data.shapes.largest_of_data()
    widest = instances.data.shapes.widest()
    counted = estimate_recipe_memory(instances.workload, instances.recipe, cuda, len(instances.data.classes), alone)
    wider = instances.memory(cuda)
    assert wider.largest * alone[0] * alone[1] >= counted.largest * widest[0] * widest[1]
    assert wider.largest > counted.largest  # portraits beside landscapes need a square
    assert replace(wider, largest=counted.largest) == counted
    assert instances.memory(System("cpu")).largest == 0
    assert detection.memory(cuda) == estimate_recipe_memory(
        detection.workload, detection.recipe, cuda, len(detection.data.classes)
    )


def test_the_loader_s_memory_on_a_device_is_allocated_before_the_first_step(tasks, monkeypatch):
    """The meta device stands for the accelerator, and its streams are stand-ins."""
    monkeypatch.setattr(loader_module, "get_stream_module", lambda device: streams)
    for task in tasks:
        streams = LazyStreams("nobody")
        plan = make_plan(task.recipe, System(), world=1, most=1, train_images=8, val_images=2)
        assert plan.micro_batches == 2
        place = InputRank(0, 1, torch.device("meta"), 1)
        with task.data.train_loader(replace(plan, stop_after=9), System(), place, first=0, one_batch=False) as loader:
            rooms = [slot.landing.room for slot in loader._ring]
            largest = 0
            for _, batches in loader:
                assert all(tensor.is_meta for batch in batches for tensor in batch.tensors().values())
                largest = max(largest, count_bytes([t for batch in batches for t in batch.tensors().values()]))
            assert [slot.landing.room for slot in loader._ring] == rooms == [largest] * (System().prefetch_steps + 1)
        streams.finish()


@pytest.mark.parametrize(
    "name",
    [
        "resnet50",
        "ssd",
        "maskrcnn",
        *(pytest.param(name, marks=ONE_MORE) for name in ("maskrcnn-nvidia-256", "maskrcnn-gluoncv-192")),
    ],
)
def test_no_tensor_of_a_forward_on_an_accelerator_has_more_elements_than_its_kernels_count(name):
    recipe = RECIPES[name]()
    memory = memory_of_network(recipe, H200)
    most = max_images_per_forward(memory, H200)
    assert most * memory.largest < COUNTABLE
    if recipe.task == "instance-segmentation":
        assert 8 <= most <= 96  # its memory alone would hold over 200
        with pytest.raises(RecipeError, match=rf"--system.micro-batch-size 128.* {COUNTABLE // memory.largest},"):
            max_images_per_forward(memory, replace(H200, micro_batch_size=128))
    else:
        assert most == 512
    plan = make_plan(recipe, H200, world=1, most=most, train_images=DATA_IMAGES["coco"][0], val_images=5000)
    assert plan.micro_batch_size * memory.largest < COUNTABLE


@pytest.mark.parametrize("task", list(WORKLOADS))
def test_a_cpu_s_estimate_and_its_cut_stay_as_they_were(task):
    name = {"classification": "resnet50", "detection": "ssd", "instance-segmentation": "maskrcnn"}[task]
    memory = memory_of_network(RECIPES[name](), System("cpu"))
    assert memory.largest == 0
    assert max_images_per_forward(memory, System("cpu", micro_batch_size=4000)) == 4000
    # What the accelerator's estimate looks at besides changes nothing of it; its working share is of its own.
    cuda = memory_of_network(RECIPES[name](), System("cuda"))
    assert replace(cuda, largest=0, per_image=memory.per_image) == memory
    ratio = (1 + WORKLOADS[task].network.working_share) / (1 + memory_module.WORKING_SHARE)
    assert cuda.per_image == pytest.approx(memory.per_image * ratio, rel=1e-6)
    assert max_images_per_forward(MemoryEstimate(0, 1, 0), System("cpu")) == 512


@pytest.mark.parametrize("name", ["classify-demo", "ssd-demo", "maskrcnn-demo"])
def test_a_remembered_estimate_is_the_counted_one_and_is_of_that_network_alone(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    recipe, counted = RECIPES[name](), []
    count = memory_module._count
    monkeypatch.setattr(memory_module, "_count", lambda *given: counted.append(name) or count(*given))
    first = memory_of_network(recipe, System("cpu"))
    assert memory_of_network(recipe, System("cpu")) == first and counted == [name]
    bf16 = memory_of_network(replace(recipe, ema_decay=0.0), System("cpu", precision="bf16"))
    assert counted == [name] and bf16.per_image == int(first.per_image / 2) and bf16.fixed < first.fixed
    more = memory_of_network(recipe, System("cpu"), classes=50)
    assert len(counted) == 2 and more.parameters > first.parameters
    cuda = memory_of_network(recipe, System("cuda"))
    assert cuda.largest > 0 and len(counted) == 3
    assert memory_of_network(recipe, System("cuda", precision="tf32")) == cuda  # TF32 tensors are stored as float32
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "another"))
    assert memory_of_network(recipe, System("cpu")) == first and len(counted) == 4


def test_a_network_of_ones_own_is_counted_each_time(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    recipe = RECIPES["classify-demo"]()

    own = replace(recipe, task="./mine.py:WORKLOAD")
    found = [estimate_recipe_memory(WORKLOADS["classification"], own, System("cpu"), classes) for classes in (3, 9)]
    assert found[0].parameters < found[1].parameters and not any(tmp_path.iterdir())


def test_mask_r_cnn_is_not_compiled_and_says_so(tasks):
    detection, instances = tasks
    compiled, said = replace(h200x8(), compile="on"), []
    assert resolve_system(instances.recipe, compiled, False, Lines(said.append)) == replace(compiled, compile="off")
    assert len(said) == 1 and said[0].startswith("compile")
    assert resolve_system(detection.recipe, compiled, False, Lines(said.append)) is compiled and len(said) == 1
    plain = replace(compiled, compile="off")
    assert resolve_system(instances.recipe, plain, False, Lines(said.append)) is plain and len(said) == 1


def test_exact_mask_r_cnn_is_refused_on_an_accelerator_alone(tasks):
    detection, instances = tasks
    with pytest.raises(
        RecipeError, match=r"--deterministic: instance-segmentation .*RoIAlign.*--system.kernels triton.*--system cpu"
    ):
        resolve_system(instances.recipe, replace(h200x8(), kernels="torch"), True, SILENT)
    own = h200x8()  # training/step_variants.py chooses the kernels in Triton
    with pytest.raises(RecipeError, match=r"RoIPool.*--system cpu"):
        resolve_system(override(instances.recipe, {"model.roi.pool_type": "pool"}), own, True, SILENT)
    resolve_system(instances.recipe, own, True, SILENT)
    resolve_system(instances.recipe, System("cpu"), True, SILENT)
    resolve_system(detection.recipe, h200x8(), True, SILENT)
