"""The slow functions of the originals against what was published: configurations, resolved rates, logged warm-up steps."""

import pytest
from originals import gaudi_ssd, gluoncv_maskrcnn, mxnet_resnet, mxnet_ssd, nvidia_pytorch_ssd, polynomial, reference_ssd

# ResNet: GPUs, images of each, global batch, base rate, warm-up epochs, epochs, weight decay, momentum, steps an epoch.
RESNET = """
    8    400  3200  11.0  2 37 5e-5   0.9  401
    32   100  3200  10.7  5 37 5e-5   0.9  401
    64    50  3200  11.0  2 37 5e-5   0.9  401
    512   40 20480  22.0 12 52 2.5e-5 0.9   63
    768   42 32256  21.2 16 58 2.5e-5 0.95  40
    3584  16 57344  23.0 32 78 2.5e-5 0.95  23
    8    408  3264  10.5  2 37 5e-5   0.9  393
    64    51  3264  10.5  2 37 5e-5   0.9  393
"""
# SSD: nodes, GPUs of a node, images of each, global batch, rate as configured, warm-up epochs; logged: rate, warm-up steps.
SSD = """
    1   4 128  512 2.92e-3  5.25 0.0475 1202
    2   4 128 1024 5.84e-3  5.25 0.1875  601
    4   4  56  896 3.2e-3   5    0.09    654
    1   8 128 1024 5.84e-3  5    0.1875  572
    8   8  24 1536 2.9e-3  11    0.14    839
    64  8   4 2048 4.57e-3 26    0.2925 1488
    64 16   2 2048 4.57e-3 26    0.2925 1488
    128 8   2 2048 4.57e-3 26    0.2925 1488
"""
# NVIDIA's PyTorch submissions: GPUs, images of each, global batch, rate as configured, warm-up steps; logged: rate.
PYTORCH = """
    8  120  960 2.92e-3 650 0.0875
    16  56  896 3.2e-3  650 0.09
    64  24 1536 2.9e-3  850 0.14
    8  114  912 3.2e-3  650 0.09
"""


def rows(table):
    return [tuple(map(float, line.split())) for line in table.strip().splitlines()]


@pytest.mark.parametrize("row", rows(RESNET), ids=lambda row: f"{row[0]:g}x{row[1]:g}")
def test_resnet_configurations_come_to_the_published_batches_and_steps(row):
    gpus, images, batch, lr, warmup, epochs, decay, momentum, steps = row
    given = {"batch_size": int(images), "lr": lr, "warmup_epochs": int(warmup), "num_epochs": int(epochs), "wd": decay}
    found = mxnet_resnet(given | {"mom": momentum}, int(gpus))
    assert (found.global_batch_size, found.steps_per_epoch, found.lr) == (batch, steps, lr)
    assert (found.steps, found.warmup_steps) == (steps * epochs, steps * warmup)
    assert (found.weight_decay, found.momentum, found.target) == (decay, momentum, "top1 0.759")
    assert found.first_lr == pytest.approx(polynomial(lr, 1, int(steps * warmup), int(steps * epochs)))
    assert found.decay_steps == (found.steps,)


def test_run_and_time_without_a_configuration_is_its_own_sgd():
    """Its defaults: 1664 images, rate 0.6, falls at 30, 60 and 80 of 90 epochs, five of warm-up."""
    found = mxnet_resnet({}, 1, environment=True)
    assert (found.global_batch_size, found.steps_per_epoch, found.lr) == (1664, 770, 0.6)
    assert found.decay_steps == (30 * 770, 60 * 770, 80 * 770)
    assert (found.warmup_steps, found.weight_decay, found.steps) == (5 * 770, 1e-4, 90 * 770)


@pytest.mark.parametrize("row", rows(SSD), ids=lambda row: f"{row[0]:g}x{row[1]:g}x{row[2]:g}")
def test_ssd_configurations_come_to_the_logged_rates_and_warmups(row):
    nodes, gpus, images, batch, lr, warmup, logged, steps = row
    found = mxnet_ssd({"batch_size": int(images), "lr": lr, "lr_warmup_epochs": warmup}, int(nodes * gpus))
    assert (found.global_batch_size, found.warmup_steps) == (batch, steps)
    assert found.lr == pytest.approx(logged)


def test_ssd_epochs_have_the_logged_steps_and_fall_after_44_and_55():
    assert [mxnet_ssd({"batch_size": size}, gpus).steps_per_epoch for gpus, size in ((4, 128), (8, 128), (16, 56))] == [
        230,
        115,
        131,
    ]
    found = mxnet_ssd({"batch_size": 128}, 4)
    assert (found.decay_steps, found.steps) == ((44 * 230, 55 * 230), 80 * 230)
    assert (found.weight_decay, found.target) == (5e-4, "box_ap 0.23")


@pytest.mark.parametrize("epochs, images", [(2.619685, 128), (1.3098425, 64), (0.65492125, 32)])
def test_dgx1_scripts_warm_up_over_299_steps(epochs, images):
    """Their remark says 300; the program cuts the fraction off."""
    assert mxnet_ssd({"batch_size": images, "lr_warmup_epochs": epochs}, 8).warmup_steps == 299


@pytest.mark.parametrize("row", rows(PYTORCH), ids=lambda row: f"{row[0]:g}x{row[1]:g}")
def test_pytorch_ssd_configurations_come_to_the_logged_rates(row):
    gpus, images, batch, lr, warmup, logged = row
    found = nvidia_pytorch_ssd({"batch_size": int(images), "lr": lr, "warmup": int(warmup)}, int(gpus))
    assert (found.global_batch_size, found.warmup_steps) == (batch, warmup)
    assert found.lr == pytest.approx(logged)


def test_the_reference_scales_its_rate_and_warms_up_299_steps():
    found = reference_ssd({"batch_size": 128, "warmup": 2.619685, "epochs": 70}, 8)
    assert (found.global_batch_size, found.lr, found.warmup_steps, found.steps_per_epoch) == (1024, 0.08, 299, 115)
    assert found.decay_steps == (40 * 115, 50 * 115)
    assert reference_ssd({}, 1).steps_per_epoch == 3665


def test_gaudi_epochs_are_those_of_its_readme():
    assert [gaudi_ssd({"batch_size": size}, cards).steps_per_epoch for size, cards in ((128, 1), (240, 1), (128, 8), (256, 8))] == [
        917,
        489,
        115,
        58,
    ]  # fmt: skip
    one, eight = gaudi_ssd({"epochs": 64}, 1), gaudi_ssd({"epochs": 64}, 8)
    assert (one.steps, eight.steps) == (58_688, 7_360)
    assert (eight.lr, eight.warmup_steps, eight.decay_steps) == (0.096, 575, (40 * 115, 50 * 115))
    assert gaudi_ssd({"k": 2}, 8).decay_steps == (48 * 115, 60 * 115)


def test_gluoncv_benchmarks_come_to_their_published_numbers():
    node = {
        "batch_size": 16,
        "lr": 0.02,
        "lr_warmup": 1000,
        "lr_warmup_factor": 0.03,
        "lr_decay_epoch": (8, 10),
        "epochs": 12,
    }
    one = gluoncv_maskrcnn(node, 8)
    assert (one.batch_per_device, one.steps_per_epoch, one.decay_steps) == (2, 7330, (8 * 7330, 10 * 7330))
    assert one.first_lr == pytest.approx(0.0006)
    many = gluoncv_maskrcnn({"batch_size": 192, "lr": 0.16, "lr_warmup": 1600, "epochs": 12}, 192)
    assert (many.batch_per_device, many.steps_per_epoch, many.steps) == (1, 611, 7332)
    plain = gluoncv_maskrcnn({}, 1)
    assert (plain.lr, plain.warmup_steps, plain.epochs) == (0.01, 1000, 26)
    assert gluoncv_maskrcnn({"batch_size": 4}, 4).warmup_steps == 2000
