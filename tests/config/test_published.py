"""Every published pairing of machine and recipe, field by field, typed from the fact sheets and not from the code.

Section numbers name the sheets: S the SSD's, R ResNet-50's, M Mask R-CNN's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from messages import check_text, raises
from tiny_runs import command, refused

from paceline._utils.errors import RecipeError
from paceline.config.plan import make_plan, split_batch
from paceline.config.published import (
    PAIRINGS,
    RESULTS,
    check_nodes,
    find_published,
    published_for,
    published_results,
    published_settings,
    recipe_for_nodes,
    system_for,
)
from paceline.config.recipe import DATA_IMAGES
from paceline.config.recipes import RECIPES
from paceline.config.system import check_system
from paceline.distributed.device.systems import DETECTED, SYSTEMS

# Machines --------------------------------------------------------------------------------------------------------------

# system -> accelerators a node, GiB each, sockets, cores a socket, threads a core, GiB of the host, fabric, interface, bind
MACHINES = {
    "dgx-h100": (8, 80, 2, 56, 2, 2048, "ib", "", "exclusive"),  # R 12.6; HT R 12.5; bindpcie --cpu=exclusive R 12.1
    "dgx-a100": (8, 40, 2, 64, 2, 0, "ib", "ib0", "exclusive"),  # S 14.1, S 15 (40 GB), ib0 S 8, R 12.1
    "dgx1": (8, 32, 2, 20, 2, 0, "ib", "", "node"),  # S 14.1; InfiniBand S 14.4; bind.sh's default S 14.2
    "dgx1-16gb": (8, 16, 2, 20, 2, 0, "ib", "", "node"),  # S 15
    "dgx2": (16, 32, 2, 24, 2, 0, "ib", "", "node"),  # S 14.1, S 15
    "dss8440": (8, 32, 2, 20, 2, 384, "", "", "off"),  # S 14.1 (TOBIND=0), S 15
    "c4140": (4, 32, 2, 20, 1, 384, "", "", "off"),  # S 14.1 (HT1, TOBIND=0), S 15
    "p3dn": (8, 32, 2, 24, 2, 0, "efa", "ens5", "exclusive"),  # M 12; memory is AWS's
    "gaudi8": (8, 32, 0, 0, 0, 0, "", "", "exclusive"),  # S 14.3 (PE=7); memory is Habana's
    "gaudi2x8": (8, 96, 0, 0, 0, 0, "", "", "off"),  # R 4.3; memory is Habana's
    "mi300x8": (8, 192, 0, 0, 0, 0, "", "", "off"),  # memory is AMD's
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_carries_what_its_sheet_says_and_nothing_that_it_leaves_out(name):
    system = SYSTEMS[name]()
    check_system(system)
    found = (system.ranks_per_node, system.memory_gib, system.sockets, system.cores_per_socket, system.threads_per_core)
    found += (system.host_memory_gib, system.fabric, system.interface, system.cpu_bind)
    assert found == MACHINES[name]
    assert system.device_name and system.micro_batch_size == 0 and system.grad_compression == "none"


def test_every_machine_of_the_menu_is_typed_here_or_is_a_plain_one():
    assert set(SYSTEMS) == {*MACHINES, *DETECTED, "h100x8", "h200x8", "a100x8", "v100x8"}


def test_number_formats_threads_buckets_and_variables_are_the_published_ones():
    formats = {name: SYSTEMS[name]().precision for name in MACHINES}
    # S 7: fp16 on V100, bf16 on Gaudi; R 5: bf16 is the substitute of fp16 where the chip has it, Habana's own.
    assert {name for name, number in formats.items() if number == "fp16"} == {
        "dgx1", "dgx1-16gb", "dgx2", "dss8440", "c4140", "p3dn",
    }  # fmt: skip
    assert {number for number in formats.values()} == {"fp16", "bf16"}
    assert {SYSTEMS[name]().loss_scale for name in MACHINES} == {0.0}  # it belongs to a recipe
    assert SYSTEMS["dgx-h100"]().ddp_bucket_mib == 64  # R 12.5: HOROVOD_FUSION_THRESHOLD 67108864
    assert SYSTEMS["p3dn"]().ddp_bucket_mib == 128  # M 12: 134217728
    assert SYSTEMS["p3dn"]().intra_op_threads == 2  # M 12: OMP_NUM_THREADS=2
    assert {SYSTEMS[name]().intra_op_threads for name in ("c4140", "dgx2", "dgx-h100")} == {1}  # S 14.2, R 12.4
    assert dict(pair.split("=") for pair in SYSTEMS["p3dn"]().env) == {  # M 12
        "FI_EFA_TX_MIN_CREDITS": "64",
        "NCCL_MIN_NRINGS": "1",
        "NCCL_NSOCKS_PERTHREAD": "8",
        "NCCL_SOCKET_NTHREADS": "2",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_NET_GDR_READ": "1",
    }
    chips = {name: SYSTEMS[name]().device for name in MACHINES}
    assert [name for name, kind in chips.items() if kind != "cuda"] == ["gaudi8", "gaudi2x8"]
    assert {chips["gaudi8"], chips["gaudi2x8"]} == {"hpu"}


# Pairings --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sheet:
    """One row, as typed from a sheet; steps are optimizer steps, 0 = the sheet does not say."""

    system: str
    nodes: int
    accelerators: int
    images: int  # of an accelerator
    batch: int
    recipe: str
    lr: float
    warmup: float  # steps
    decay: float
    momentum: float
    span: int  # images that share BatchNorm statistics
    steps: int  # of an epoch
    boundaries: tuple[float, ...] = ()  # epochs, or steps where the schedule counts in steps
    length: float = 0.0  # epochs
    precision: str = "fp16"
    scale: float = 128.0
    bind: str = ""
    evaluate: int = 0


def resnet(system, nodes, ranks, images, batch, lr, warm, length, decay, mom, steps, recipe, join=1, **more):
    """R 4.3, one line of its table, in its order; fp16 without a scaler, on sums over B_gpu images (R 5); R 12.1."""
    more = {"bind": "exclusive", "scale": float(images), "length": length} | more
    return Sheet(system, nodes, ranks, images, batch, recipe, lr, warm * steps, decay, mom, images * join, steps, **more)


def ssd(system, nodes, ranks, images, batch, recipe, lr, warm, decay, steps, join=1, bounds=(44, 55), **more):
    """S 14.1 and 15; 80 epochs S 13.1; momentum S 6; scale S 7."""
    more = {"bind": "node", "boundaries": bounds, "length": 80} | more
    return Sheet(system, nodes, ranks, images, batch, recipe, lr, warm, decay, 0.9, images * join, steps, **more)


def mask(system, nodes, ranks, images, batch, recipe, lr, warm, bounds, **more):
    """M 4; decay 1e-4, momentum 0.9; no BatchNorm learns (M 1); dynamic loss scale (M 5); steps = ceil(117,266 / batch)."""
    more = {"scale": 0.0} | more
    steps = -(-117_266 // batch)
    return Sheet(system, nodes, ranks, images, batch, recipe, lr, warm, 1e-4, 0.9, 1, steps, bounds, **more)


OFF = {"bind": "off"}  # S 14.1: TOBIND=0; S 14.2: run.slurm's --bind-to none

SHEETS = [
    # R 4.3.
    resnet("dgx-h100", 1, 8, 400, 3200, 11.0, 2, 37, 5e-5, 0.9, 401, "resnet50-mlperf-3200"),
    resnet("dgx-h100", 4, 32, 100, 3200, 10.7, 5, 37, 5e-5, 0.9, 401, "resnet50-mlperf-3200-4x8"),
    resnet("dgx-h100", 8, 64, 50, 3200, 11.0, 2, 37, 5e-5, 0.9, 401, "resnet50-mlperf-3200-8x8"),
    resnet("dgx-h100", 64, 512, 40, 20480, 22.0, 12, 52, 2.5e-5, 0.9, 63, "resnet50-mlperf-20480"),
    resnet("dgx-h100", 96, 768, 42, 32256, 21.2, 16, 58, 2.5e-5, 0.95, 40, "resnet50-mlperf-32256"),
    resnet("dgx-h100", 448, 3584, 16, 57344, 23.0, 32, 78, 2.5e-5, 0.95, 23, "resnet50-mlperf-57344", join=2),  # R 6
    resnet("dgx-a100", 1, 8, 408, 3264, 10.5, 2, 37, 5e-5, 0.9, 393, "resnet50-a100-3264"),
    resnet("dgx-a100", 8, 64, 51, 3264, 10.5, 2, 37, 5e-5, 0.9, 393, "resnet50-a100-3264-8x8"),
    resnet("gaudi2x8", 1, 8, 256, 2048, 9.0, 3, 35, 5e-5, 0.9, 625, "resnet50-gaudi2-2048",
           precision="bf16", scale=0.0, bind=""),
    # S 14.1; learning rates S 6, warm-up steps S 15, steps of an epoch S 5 or ceil(117,266 / batch).
    ssd("c4140", 1, 4, 128, 512, "ssd-mlperf-512", 0.0475, 1202, 1.6e-4, 230, **OFF),
    ssd("c4140", 2, 8, 128, 1024, "ssd-mlperf-1024", 0.1875, 601, 1.6e-4, 115, **OFF),
    ssd("c4140", 4, 16, 56, 896, "ssd-mlperf-896", 0.09, 654, 1.3e-4, 131, **OFF),
    ssd("dss8440", 1, 8, 128, 1024, "ssd-mlperf-1024-dss8440", 0.1875, 572, 1.6e-4, 115, **OFF),
    ssd("dgx1", 1, 8, 56, 448, "ssd-mlperf-448", 0.04, 1374, 1.6e-4, 262),
    ssd("dgx1-16gb", 1, 8, 56, 448, "ssd-mlperf-448", 0.04, 1374, 1.6e-4, 262),
    ssd("dgx2", 1, 16, 56, 896, "ssd-mlperf-896", 0.09, 654, 1.3e-4, 131),
    ssd("dgx2", 64, 1024, 2, 2048, "ssd-mlperf-2048", 0.2925, 1488, 4e-5, 58, 8, (60, 75)),
    ssd("dgx-a100", 1, 8, 114, 912, "ssd-mlperf-912", 0.09, 642, 1.3e-4, 129),
    ssd("dgx-a100", 8, 64, 24, 1536, "ssd-mlperf-1536", 0.14, 839, 1.7e-4, 77),
    ssd("dgx-a100", 64, 512, 4, 2048, "ssd-mlperf-2048", 0.2925, 1488, 4e-5, 58, 4, (60, 75)),
    ssd("dgx-a100", 128, 1024, 2, 2048, "ssd-mlperf-2048", 0.2925, 1488, 4e-5, 58, 8, (60, 75)),
    # S 14.3: 917 and 115 steps an epoch, 64 epochs; S 6: 3e-3 for 32 images, five warm-up epochs, decay 5e-4, 40 and 50; S 7 bf16.
    ssd("gaudi8", 1, 1, 128, 128, "ssd-gaudi", 0.012, 5 * 917, 5e-4, 917, bounds=(40, 50), length=64,
        precision="bf16", scale=0.0, bind=""),
    ssd("gaudi8", 1, 8, 128, 1024, "ssd-gaudi-1024", 0.096, 5 * 115, 5e-4, 115, bounds=(40, 50), length=64,
        precision="bf16", scale=0.0, bind="exclusive"),
    # M 4; the ranks' cores M 12.
    mask("p3dn", 1, 8, 2, 16, "maskrcnn-gluoncv", 0.02, 1000, (8, 10), length=12, bind="exclusive"),
    mask("p3dn", 24, 192, 1, 192, "maskrcnn-gluoncv-192", 0.16, 1600, (10, 14), length=12, bind="exclusive"),
    mask("dgx-h100", 1, 8, 12, 96, "maskrcnn-nvidia-96", 0.12, 625, (12002, 16001)),
    mask("dgx-h100", 8, 64, 4, 256, "maskrcnn-nvidia-256", 0.24, 2300, (6127, 8001)),
    mask("dgx-h100", 48, 256, 1, 256, "maskrcnn-nvidia-256-48nodes", 0.24, 1800, (5627, 7501), evaluate=128),
]  # fmt: skip


def title(row: Sheet) -> str:
    return f"{row.system}-{row.nodes}x{row.accelerators // row.nodes}-{row.recipe}"


@pytest.mark.parametrize("row", SHEETS, ids=title)
def test_a_published_pairing_is_planned_field_by_field_as_published(row):
    recipe = RECIPES[row.recipe]()
    (found,) = [
        pairing
        for pairing in find_published(row.system, recipe.task, row.recipe)
        if (pairing.nodes, pairing.accelerators) == (row.nodes, row.accelerators)
    ]
    assert (found.micro_batch_size, found.global_batch_size) == (row.images, row.batch)
    assert (found.precision, found.loss_scale, found.bind) == (row.precision, row.scale, row.bind)
    assert found.evaluation_ranks == row.evaluate

    machine = SYSTEMS[row.system]()
    system = system_for(row.recipe, row.system, machine)
    check_system(system)
    assert (system.precision, system.cpu_bind) == (row.precision, row.bind or machine.cpu_bind)
    assert row.nodes > 1 or system.loss_scale == row.scale
    train, val = DATA_IMAGES[recipe.target_data]
    plan = make_plan(
        recipe, system, world=row.accelerators, most=system.micro_batch_size, train_images=train, val_images=val
    )
    assert (plan.micro_batch_size, plan.micro_batches, plan.global_batch_size) == (row.images, 1, row.batch)
    assert (plan.world_size, plan.nodes) == (row.accelerators, row.nodes - row.evaluate // machine.ranks_per_node)
    assert plan.bn_batch_size == row.span and plan.micro_batch_size * plan.bn_ranks == row.span * plan.bn_groups
    assert recipe.optim.lr == pytest.approx(row.lr, rel=1e-12)
    assert (recipe.optim.weight_decay, recipe.optim.momentum) == (row.decay, row.momentum)
    assert plan.warmup_steps == pytest.approx(row.warmup, abs=1e-6)
    assert plan.steps_per_epoch == row.steps
    if row.boundaries:
        assert recipe.schedule.milestones == row.boundaries
    if row.length:
        assert recipe.epochs == row.length and plan.total_steps == row.length * row.steps
    if recipe.task == "instance-segmentation":
        assert (plan.loss_normalizer_images, plan.loss_groups, plan.loss_micro_batches, plan.loss_ranks) == (
            row.images,
            1,
            1,
            1,
        )


def test_no_pairing_stands_in_the_code_that_was_not_typed_here():
    typed = {(row.system, row.nodes, row.accelerators, row.recipe) for row in SHEETS}
    assert {(p.system, p.nodes, p.accelerators, p.recipe) for p in PAIRINGS} == typed and len(typed) == len(SHEETS)


def test_the_largest_run_has_its_own_variables_and_network():
    (largest,) = find_published("dgx-h100", recipe_name="resnet50-mlperf-57344")
    assert "NCCL_COLLNET_ENABLE=1" in largest.env  # R 6
    assert system_for("resnet50-mlperf-57344", "dgx-h100", SYSTEMS["dgx-h100"]()).env == ()  # its nodes are not known there
    assert published_for("resnet50-mlperf-57344", "dgx-h100", 448) is largest
    assert published_for("resnet50-mlperf-57344", "dgx-h100", 64) is None
    sharp = {pairing.nodes for pairing in PAIRINGS if pairing.slurm_network == "sharp"}
    assert sharp == {64, 96, 448}  # R 6: SBATCH_NETWORK=sharp


# Results ---------------------------------------------------------------------------------------------------------------

# S 15: system, nodes, accelerators, batch, epochs, minutes, img/s per GPU
SSD_RESULTS = {
    ("c4140", 1, 4, 512, 50, 43.87, 570),
    ("c4140", 2, 8, 1024, 50, 22.67, 552),
    ("c4140", 4, 16, 896, 50, 12.44, 503),
    ("dss8440", 1, 8, 1024, 50, 25.37, 494),
    ("dgx-a100", 8, 64, 1536, 60, 2.25, 850),
    ("dgx-a100", 64, 512, 2048, 65, 0.89, 299),
    ("dgx2", 64, 1024, 2048, 65, 1.13, 118),
    ("dgx1-16gb", 1, 8, 960, 50, 20.69, 601),
    ("dgx2", 1, 16, 896, 50, 9.65, 656),
    ("dgx2", 4, 64, 1536, 60, 3.93, 501),
    ("dgx-a100", 1, 8, 912, 50, 10.21, 1227),
    ("dgx-a100", 2, 16, 896, 50, 5.68, 1122),
}
# R 13
RESNET_RESULTS = {
    ("dgx-h100", 1, 8, 3200, 35, 13.601, 7009),
    ("dgx-h100", 8, 64, 3200, 35, 2.664, 4606),
    ("dgx-h100", 64, 512, 20480, 50, 0.503, 4390),
    ("dgx-h100", 96, 768, 32256, 56, 0.369, 4448),
    ("dgx-h100", 448, 3584, 57344, 77, 0.183, 2815),
    ("gaudi2x8", 1, 8, 2048, 35, 16.460, 5806),
    ("gaudi2x8", 1, 8, 2048, 35, 15.991, 5945),
    ("gaudi2x8", 1, 8, 2048, 35, 16.409, 5842),
}
# M 15; of the 384 accelerators of 48 nodes 256 trained, at 94 img/s each
MASK_RESULTS = {
    ("dgx-h100", 1, 8, 96, 14, 19.180, 187),
    ("dgx-h100", 8, 64, 256, 18, 4.264, 134),
    ("dgx-h100", 48, 256, 256, 17, 1.466, 94),
}


@pytest.mark.parametrize(
    ("workload", "typed"),
    [("detection", SSD_RESULTS), ("classification", RESNET_RESULTS), ("instance-segmentation", MASK_RESULTS)],
)
def test_published_results_are_those_of_the_sheets(workload, typed):
    """Rows of other rounds and of partners' machines (a100x8 and the like) come on top."""
    found = {
        (row.system, row.nodes, row.accelerators, row.global_batch_size, row.epochs, row.minutes, row.rate)
        for system in MACHINES
        for row in published_results(workload, system)
    }
    assert typed <= found
    assert all(row[0] in {"dgx-h100", "dgx-a100"} and workload == "classification" for row in found - typed)


@pytest.mark.parametrize("row", RESULTS, ids=lambda row: f"{row.workload}-{row.source}".replace(" ", "_"))
def test_minutes_rate_and_epochs_of_a_published_result_fit_each_other(row):
    """A run lasts at least as long as its images take at the logged rate, and not twice as long: a slip of the pen would."""
    images = {"classification": 1_281_167, "detection": 117_266, "instance-segmentation": 117_266}[row.workload]
    training = row.epochs * images / (row.rate * row.accelerators) / 60
    # Rates are rounded; at hundreds of accelerators start and evaluation take as long as training.
    assert 0.97 * training < row.minutes < (1.2 if row.accelerators <= 16 else 1.7) * training
    if row.recipe:
        assert RECIPES[row.recipe]().global_batch_size == row.global_batch_size
        assert find_published(row.system, row.workload, row.recipe)


# What a user changes by hand -------------------------------------------------------------------------------------------


def test_a_recipe_that_was_not_published_on_a_system_leaves_it_as_it_is():
    for name, recipe in (("dgx-h100", "ssd-mlperf-512"), ("c4140", "resnet50"), ("cpu", "ssd-mlperf-512"), ("auto", "x")):
        system = replace(SYSTEMS["c4140"](), memory_gib=3)
        assert system_for(recipe, name, system) is system


def test_what_is_changed_by_hand_takes_its_published_partner_along():
    machine = SYSTEMS["c4140"]()
    assert system_for("ssd-mlperf-512", "c4140", machine, {"optim.lr", "steps"}).micro_batch_size == 128
    assert system_for("ssd-mlperf-512", "c4140", machine, {"input.image_size"}).micro_batch_size == 0
    assert system_for("ssd-mlperf-512", "c4140", machine, {"system.precision"}).loss_scale == 0


# Other numbers of nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "system", "nodes", "published", "recipe"),
    [
        ("classification", "dgx-h100", 2, 1, "resnet50-mlperf-3200"),  # as near to 4: the smaller
        ("classification", "dgx-h100", 16, 8, "resnet50-mlperf-3200-8x8"),
        ("classification", "dgx-h100", 32, 64, "resnet50-mlperf-20480"),
        ("classification", "dgx-h100", 50, 8, "resnet50-mlperf-3200-8x8"),  # 64 is nearer, and its batch is not cut by 400
        ("classification", "dgx-h100", 448, 448, "resnet50-mlperf-57344"),
        ("detection", "dgx-a100", 100, None, "64 nodes ... ssd-mlperf-2048 ... 2,048 images ... 128 nodes"),
        ("detection", "c4140", 3, None, "2 nodes ... ssd-mlperf-1024 ... 1,024 images ... 4 nodes ... ssd-mlperf-896"),
        ("detection", "c4140", 8, 4, "ssd-mlperf-896"),
        ("detection", "gaudi8", 1, 1, "ssd-gaudi-1024"),  # of two on one node the one with more accelerators
        (
            "instance-segmentation",
            "dgx-h100",
            2,
            8,
            "maskrcnn-nvidia-256",
        ),  # 96 images divide, losses over 12 of them do not
        ("instance-segmentation", "dgx-h100", 64, None, "48 nodes (maskrcnn-nvidia-256-48nodes"),
        ("instance-segmentation", "p3dn", 24, 24, "maskrcnn-gluoncv-192"),
    ],
)
def test_another_number_of_nodes_takes_the_nearest_recipe_or_is_refused_with_both_neighbours(
    workload, system, nodes, published, recipe
):
    if published is None:
        with pytest.raises(RecipeError) as refusal:
            recipe_for_nodes(workload, system, nodes)
        assert check_text(str(refusal.value), recipe) and "\n" not in str(refusal.value)
        return
    found = recipe_for_nodes(workload, system, nodes)
    assert found is not None and (found.nodes, found.recipe) == (published, recipe)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 7, 8, 24, 48, 100, 448, 449, 1000])
def test_what_the_rule_gives_has_a_plan(nodes):
    for workload, system in sorted({(pairing.workload, pairing.system) for pairing in PAIRINGS}):
        try:
            found = recipe_for_nodes(workload, system, nodes)
        except RecipeError:
            continue
        assert found is not None
        recipe, machine = RECIPES[found.recipe](), SYSTEMS[system]()
        ranks = nodes * machine.ranks_per_node - found.evaluation_ranks * (nodes == found.nodes)
        span = min(recipe.bn_batch_size, recipe.global_batch_size)
        group = getattr(recipe.model, "loss_normalizer_images", 0)
        images, forwards, _, _ = split_batch(recipe.global_batch_size, ranks, found.micro_batch_size, span, group)
        assert images * forwards * ranks == recipe.global_batch_size


def test_a_recipe_named_by_hand_is_allowed_where_it_can_be_cut_and_the_published_one_is_said():
    assert check_nodes("resnet50-mlperf-3200", "dgx-h100", 1) == ""
    assert "4 nodes (resnet50-mlperf-3200-4x8" in check_nodes("resnet50-mlperf-3200", "dgx-h100", 4)
    assert "nearest" in check_nodes("resnet50-mlperf-3200-8x8", "dgx-h100", 16)
    assert check_nodes("ssd-demo", "dgx-h100", 3) == check_nodes("ssd-mlperf-512", "auto", 3) == ""
    with pytest.raises(RecipeError, match=r"4 nodes \(resnet50-mlperf-3200-4x8.*8 nodes \(resnet50-mlperf-3200-8x8"):
        check_nodes("resnet50-mlperf-3200-4x8", "dgx-h100", 6)
    with raises(RecipeError, "ssd-mlperf-912", "64 ranks", "8 nodes"):
        check_nodes("ssd-mlperf-912", "dgx-a100", 8)
    with pytest.raises(RecipeError, match=r"Add --dedicated-eval-ranks 128\.$"):
        check_nodes("maskrcnn-nvidia-256-48nodes", "dgx-h100", 48)


def test_show_refuses_a_number_of_nodes_with_its_two_neighbours_in_one_line(capsys):
    refused(command(capsys, "plan", "ssd-mlperf-1024", "--system", "c4140", "--nodes", "3"), "2 nodes (", "4 nodes (")


def test_what_of_a_system_is_as_published_is_said_and_what_was_changed_is_not():
    machine = SYSTEMS["c4140"]()
    system = system_for("ssd-mlperf-512", "c4140", machine)
    wanted = "micro-batches of up to 128, fp16, loss scale 128, CPU binding off: as published on 1 node"
    assert published_settings("ssd-mlperf-512", "c4140", system) == wanted
    own = replace(system, micro_batch_size=64, precision="bf16", loss_scale=0.0)
    assert check_text(published_settings("ssd-mlperf-512", "c4140", own), "binding off", "1 node")
    assert published_settings("ssd-demo", "c4140", machine) == ""


@pytest.mark.nightly("six whole commands")
def test_show_plans_a_published_pairing_as_published_unless_it_is_changed_by_hand(capsys):
    said = command(capsys, "plan", "resnet50-mlperf-3200", "--system", "dgx-h100", "--nodes", "2")
    assert said.code == 0 and check_text(said.out, "nearest", "dgx-h100") and "torch 2" not in said.out
    said = command(capsys, "plan", "ssd-mlperf-512", "--system", "c4140")
    text = " ".join(said.out.split())
    check_text(text, "128, fp16, loss scale 128, CPU binding off", "1 node")
    assert "50 epochs in 43.87 min on 1 node, 570 images/s per accelerator" in text
    assert text.count("torch 2.9.1 (containers/constraints-v100.txt): ") == 1
    own = command(capsys, "plan", "ssd-mlperf-512", "--system", "c4140", "--system.micro-batch-size", "64").out
    own = " ".join(own.split())
    assert check_text(own, "64 images", "2 micro-batches") and "up to" not in own


def test_where_nothing_was_published_there_is_no_rule_and_no_nodes_are_refused():
    assert recipe_for_nodes("detection", "dgx-h100", 5) is None
    assert recipe_for_nodes("classification", "mi300x8", 5) is None
    with pytest.raises(RecipeError, match="--nodes 0"):
        recipe_for_nodes("detection", "c4140", 0)
