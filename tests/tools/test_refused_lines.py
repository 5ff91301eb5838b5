"""A line that the original, or ours, could not carry out is refused in one line that names its flag."""

import pytest
from messages import check_text

from paceline._utils.errors import PacelineError
from paceline.cli.commands.translate import translation_record

RESNET, MASK = "python train_imagenet.py --use-dali", "python train_mask_rcnn.py --use-fpn"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{RESNET} --batchsize 4", "--batchsize ... train_imagenet.py ... Did you mean --batch-size"),
        (f"{RESNET} --optimizer adam", "--optimizer adam ... sgd"),
        (f"{RESNET} --lr-step-epochs 30,a", "--lr-step-epochs 30,a"),
        (f"{RESNET} --image-shape 4", "--image-shape 4"),
        (f"{RESNET} --num-layers 51", "--num-layers 51"),
        (f"{MASK} --lr-decay-epoch 8:10", "--lr-decay-epoch 8:10"),
        (f"{MASK} custom-model --anchor-aspect-ratio a,b", "--anchor-aspect-ratio a,b"),
        (f"{MASK} --batch-size 0", "steps"),
        ("mpirun -np 6 " + MASK + " --horovod --batch-size 16", "6 ranks"),
        ("LR=1 ./run_and_time.sh", "configuration"),
        ("source config_DGXH200.sh; sbatch run.sub", "config_DGXH200.sh"),
    ],
)
def test_a_line_that_cannot_be_carried_out_is_refused_in_a_line(line, said):
    with pytest.raises(PacelineError) as refusal:
        translation_record(line)
    assert check_text(str(refusal.value), said)


@pytest.mark.parametrize("line", ["source {}", "{}", "source {}; CONT=x sbatch run.sub", "DGXSYSTEM={} ./run_and_time.sh"])
def test_an_unknown_configuration_gets_the_near_names(line):
    name = "DGXH100_8x8x50" if "DGXSYSTEM" in line else "config_DGXH100_8x8x50.sh"
    with pytest.raises(PacelineError) as refusal:
        translation_record(line.format(name))
    assert "config_DGXH100_multi_8x8x50.sh" in str(refusal.value)


def test_a_suggestion_has_each_name_once():
    with pytest.raises(PacelineError) as refusal:
        translation_record("python trains.py")
    assert str(refusal.value).count(" train.py") == 1
