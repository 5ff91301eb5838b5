"""The migration pages: every flag and variable of the originals has a row, each of our cells is a command that parses, and those
that launch have a plan and files.

The lists below are typed from the originals' command lines (argparse definitions, configuration files, launch lines), not from
the pages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from by_night import ONE_MORE
from launch_cells import check_cell
from parsed import parse

from paceline._utils.errors import PacelineError
from paceline.cli import launch_checks
from paceline.cli import main as front_door

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/reference/generated/migration").glob("*.md"))
# Sections whose cells are all translations: the launches among them have a test of their own below, and test_migration_pages.py
# plans each.
TRANSLATED = ("Configuration files", "Scripts of scripts/train/dgx1")
WORDS = ("fixed", "automatic", "dead", "none")
FOLLOW = re.compile(r"^Flags in the second column follow `paceline ([^`]+)`\.$")
SPAN = re.compile(r"`([^`]+)`")

# (page, section) -> what its first column must name, each once or more, and nothing else.
LISTED = {
    ("ssd-mxnet", "Flags of ssd_main.py"): """
        --mode --backbone --bn-group --bn-fp16 --no-fuse-bn-add-relu --no-fuse-bn-relu --precision --fp16-loss-scale --dataset
        --synthetic --use-tfrecord --coco-root --tfrecord-root --dataset-size --eval-dataset-size --input-jpg-decode
        --hw-decoder-load --batch-size --eval-batch-size --data-shape --data-layout --input-batch-multiplier --dali-workers -j
        --seed --pretrained-backbone --epochs --gradient-predivide-factor --horovod-num-groups --resume-from --start-epoch --lr
        --lr-decay-factor --lr-decay-epochs --lr-warmup-epochs --lr-warmup-factor --momentum --weight-decay --save-interval
        --async-val --val-interval --val-epochs --target-map -t --cocoapi-threads --nms-valid-thresh --nms-overlap-thresh
        --nms-topk --post-nms --bulk-last-wgrad --results --log-interval --log-level --log-local-ranks --profile-no-horovod
        --profile-start --profile-stop --test-initialization --test-anchors""",
    ("ssd-mxnet", "bind.sh"): """
        --cpu=exclusive --cpu=exclusive,nosmt --cpu=node --cpu=FILE.sh --cpu=off --mem=node --mem=FILE.sh --mem=off --ib=single
        --ib=off --cluster=""",
    ("ssd-mxnet", "Configuration files"): """
        config_C4140.sh config_2xC4140.sh config_2xC4140_01x08x56.sh config_4xC4140.sh config_4xC4140_01x08x56.sh
        config_DSS8440.sh config_DGX1_01x08x56.sh
        config_DGX1_tmpdata_1x8x56.sh config_DGX2_01x16x56.sh config_DGX2_01x16x56_amp.sh config_DGX2_01x16x56_fp32.sh
        config_DGX2_01x16x56_nchw.sh config_DGX2_01x16x56_unfuse_bn.sh config_DGXA100_1x8x114.sh
        config_DGXA100_tmpdata_1x8x114.sh config_DGXA100_1x8x2x1.sh config_DGXA100_1x8x2x8.sh config_DGXA100_multi_8x8x24.sh
        config_DGXA100_multi_64x8x4x4.sh config_DGXA100_multi_128x8x2x8.sh config_DGX2_multi_64x16x02x08.sh""",
    ("ssd-mxnet", "Environment of the image"): """
        HOROVOD_CYCLE_TIME HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_NUM_NCCL_STREAMS MXNET_CUDNN_AUTOTUNE_DEFAULT
        MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD MXNET_GPU_WORKER_NTHREADS
        MXNET_CPU_PRIORITY_NTHREADS MXNET_EXPERIMENTAL_ENABLE_CUDA_GRAPH MXNET_SAFE_ACCUMULATION OMP_NUM_THREADS OMPI_MCA_btl
        OPENCV_FOR_THREADS_NUM""",
    ("ssd-mxnet", "Variables of configurations and scripts"): """
        EXTRA_PARAMS NNODES DGXNNODES NGPU DGXNGPU SOCKETCORES DGXSOCKETCORES NSOCKET DGXNSOCKET HT DGXHT DGXSYSTEM SYSTEM TOBIND
        NCCL_SOCKET_IFNAME WALLTIME WALLTIME_MINUTES NEXP CLEAR_CACHES NUMEPOCHS DATASET_DIR DATADIR PRETRAINED_DIR LOGDIR CONT
        CREATE_TMP_FILE_FROM DATESTAMP SEED MLPERF_HOST_OS SLURM_LOCALID""",
    ("ssd-gaudi", "Flags of ssd.py"): """
        -d --dtype -b --batch_size -e --epochs --mode --max_cpus --num_parallel_calls --threadpool_size --hvd_workers
        --num_workers_per_hls --kubernetes_run --use_horovod --inference --no_hpu --distributed_bn --vis_dataloader --profile
        --profiling --use_cocoeval_cc -f --use_fake_data --lr_warmup_epoch --base_lr --weight_decay --k --model_dir --resnet_checkpoint
        --data_dir --eval_samples --num_examples_per_epoch -s --steps -v --log_step_count_steps -c --save_checkpoints_epochs
        --keep_ckpt_max --save_summary_steps --static --recipe_cache --multinode --calculate_loss --val_json_file
        --training_file_pattern --val_file_pattern""",
    ("ssd-gaudi", "generate_static_dataset.py"): """
        -i --input_pattern -o --output_dir -b --batch_size -s --steps -w --workers""",
    ("ssd-gaudi", "Environment"): """
        PYTHONPATH TF_BF16_CONVERSION TF_DISABLE_MKL TF_RECIPE_CACHE_PATH TF_DONT_CLUSTER TF_CLUSTER_VARIABLES LD_PRELOAD
        HCL_CONFIG_PATH CUDA_VISIBLE_DEVICES vm.nr_hugepages hb_configs/*.yaml""",
    ("resnet50-mxnet", "Flags of train_imagenet.py"): """
        --verbose --seed --custom-bn-off --fuse-bn-relu --fuse-bn-add-relu --input-layout --conv-layout --conv-algo
        --force-tensor-core --batchnorm-layout --batchnorm-eps --batchnorm-mom --pooling-layout --kv-store --bn-group --use-nvshmem
        --network --num-layers --num-classes --gpus --num-epochs --lr --lr-factor --lr-step-epochs --initializer --label-smoothing
        --optimizer --lars-eps --lars-eta --mom --wd --batch-size --disp-batches --model-prefix --save-period --eval-period
        --eval-offset --top-k --dtype --warmup-epochs --warmup-strategy --logging-dir --log --bn-gamma-init0 --epoch-size
        --profile-worker-suffix --profile-server-suffix --accuracy-threshold --profile --load-checkpoint-path
        --save-checkpoint-path --e2e-cuda-graphs --data-train --data-train-idx --data-val --data-val-idx --data-root --use-dali
        --max-random-area --min-random-area --min-random-aspect-ratio --max-random-aspect-ratio --input-batch-multiplier
        --separ-val --dali-threads --image-shape --num-examples --num-val-examples --dali-dont-use-mmap
        --dali-bytes-per-sample-hint --dali-tmp-buffer-hint --dali-decoder-buffer-hint --dali-crop-buffer-hint
        --dali-normalize-buffer-hint --dali-hw-decoder-load --dali-prefetch-queue --dali-nvjpeg-memory-padding
        --dali-preallocate-width --dali-preallocate-height --dali-roi-decode --dali-cache-size --lazy_init_sanity""",
    ("resnet50-mxnet", "Variables of run_and_time.sh and the configurations"): """
        OPTIMIZER BATCHSIZE INPUT_BATCH_MULTIPLIER KVSTORE LR MOM LRSCHED WARMUP_EPOCHS LARSETA DALI_HW_DECODER_LOAD WD
        LABELSMOOTHING SEED EVAL_OFFSET EVAL_PERIOD DALI_PREFETCH_QUEUE DALI_NVJPEG_MEMPADDING DALI_THREADS DALI_CACHE_SIZE
        DALI_ROI_DECODE DALI_PREALLOCATE_WIDTH DALI_PREALLOCATE_HEIGHT DALI_TMP_BUFFER_HINT DALI_DECODER_BUFFER_HINT
        DALI_CROP_BUFFER_HINT DALI_NORMALIZE_BUFFER_HINT DALI_DONT_USE_MMAP NUMEPOCHS NETWORK BN_GROUP NUMEXAMPLES
        NUMVALEXAMPLES THR E2E_CUDA_GRAPHS USE_NVSHMEM DGXNNODES DGXNGPU DGXNSOCKET DGXSOCKETCORES DGXHT DGXSYSTEM WALLTIME
        SBATCH_NETWORK CONT DATADIR LOGDIR NEXP CLEAR_CACHES COPY_DATASET CHECK_COMPLIANCE MLPERF_RULESET NCCL_TEST API_LOGGING
        LOGGER TIME_TAGS NVTX_FLAG EPOCH_PROF SYNTH_DATA DISABLE_CG NV_GPU""",
    ("resnet50-mxnet", "Environment of the image and the configurations"): """
        NCCL_DEBUG OMP_NUM_THREADS OMPI_MCA_btl OMPI_MCA_coll_hcoll_enable HCOLL_ENABLE_MCAST OPENCV_FOR_THREADS_NUM
        NCCL_COLLNET_ENABLE NCCL_ALGO SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING HOROVOD_FUSION_THRESHOLD HOROVOD_CYCLE_TIME
        HOROVOD_NUM_NCCL_STREAMS HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_GROUPED_ALLREDUCES HOROVOD_ENABLE_ASYNC_COMPLETION
        MXNET_HOROVOD_NUM_GROUPS MXNET_UPDATE_ON_KVSTORE MXNET_EXEC_ENABLE_ADDTO MXNET_ASYNC_GPU_ENGINE MXNET_USE_TENSORRT
        MXNET_GPU_WORKER_NTHREADS MXNET_GPU_WORKER_NSTREAMS MXNET_GPU_COPY_NTHREADS MXNET_CUDNN_AUTOTUNE_DEFAULT
        MXNET_CUDNN_WARN_ON_IGNORED_FLAGS MXNET_OPTIMIZER_AGGREGATION_SIZE MXNET_EXTENDED_NORMCONV_SUPPORT
        MXNET_ENABLE_CUDA_GRAPHS MXNET_CUDNN_NHWC_BN_HEURISTIC_FWD MXNET_CUDNN_NHWC_BN_HEURISTIC_BWD
        MXNET_CUDNN_NHWC_BN_ADD_HEURISTIC_FWD MXNET_CUDNN_NHWC_BN_ADD_HEURISTIC_BWD MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD
        MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD MXNET_FUSE_CONV_BN_RELU MXNET_FUSE_CONV_BN_DUAL_ADD_RELU
        MXNET_CUDNN_NHWC_BN_HEURISTIC_GBN""",
    ("maskrcnn-gluoncv", "Flags of train_mask_rcnn.py"): """
        --network --dataset --num-workers -j --batch-size --gpus --epochs --resume --start-epoch --lr --lr-decay --lr-decay-epoch
        --lr-warmup --lr-warmup-factor --clip-gradient --momentum --wd --log-interval --save-prefix --save-interval --val-interval
        --seed --verbose --norm-layer --rpn-smoothl1-rho --rcnn-smoothl1-rho --use-fpn --disable-hybridization --static-alloc --amp
        --horovod --use-ext --executor-threads --kv-store""",
    ("maskrcnn-gluoncv", "Flags of its custom-model"): """
        custom-model --no-pretrained-base --num-fpn-filters --num-box-head-conv --num-box-head-conv-filters
        --num_box_head_dense_filters
        --image-short --image-max-size --nms-thresh --nms-topk --post-nms --roi-mode --roi-size --strides --clip --rpn-channel
        --anchor-base-size --anchor-aspect-ratio --anchor-scales --anchor-alloc-size --rpn-nms-thresh --rpn-train-pre-nms
        --rpn-train-post-nms --rpn-test-pre-nms --rpn-test-post-nms --rpn-min-size --rcnn-num-samples --rcnn-pos-iou-thresh
        --rcnn-pos-ratio --max-num-gt --target-roi-scale --num-mask-head-convs""",
    ("maskrcnn-gluoncv", "Environment: the 21 variables of the benchmark"): """
        HOROVOD_FUSION_THRESHOLD HOROVOD_CYCLE_TIME HOROVOD_NUM_STREAMS HOROVOD_NUM_NCCL_STREAMS HOROVOD_HIERARCHICAL_ALLREDUCE
        HOROVOD_CACHE_CAPACITY HOROVOD_MPI_THREADS_DISABLE HOROVOD_TWO_STAGE_LOOP HOROVOD_ALLREDUCE_MODE HOROVOD_FIXED_PAYLOAD
        MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD MXNET_USE_FUSION OMP_NUM_THREADS NCCL_DEBUG
        NCCL_MIN_NRINGS NCCL_TREE_THRESHOLD NCCL_NSOCKS_PERTHREAD NCCL_SOCKET_NTHREADS NCCL_BUFFSIZE NCCL_NET_GDR_READ""",
    ("ssd-reference", "Flags of the reference's train.py"): """
        --data -d --pretrained-backbone --epochs -e --batch-size -b --val-batch-size --no-cuda --seed -s --threshold -t --iteration
        --checkpoint --no-save --val-interval --val-epochs --batch-splits --lr-decay-schedule --warmup --warmup-factor --lr
        --weight-decay --num-cropping-iterations --nms-valid-thresh --log-interval --local_rank""",
    ("ssd-reference", "Further flags of NVIDIA's PyTorch submission"): """
        --eval-batch-size --dali --no-dali --fake-input --input-batch-multiplier --dali-sync --dali-cache --use-nvjpeg
        --use-roi-decode --meta_files_path --num-workers --use-fp16 --jit --nhwc --pad-input --allreduce-running-stats
        --no-allreduce-running-stats --evaluation --warmup --lr-decay-epochs --lr-decay-factor --wd --delay-allreduce --opt-loss
        --model-path --num-classes
        --bn-group --profile --profile-start --profile-nvtx --profile-gc-off --profile-cudnn-get --profile-fake-optim
        --print-interval --backbone --input-size""",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row of a page's tables."""

    page: str
    section: str
    follows: str  # the command that flags of its second column follow
    theirs: str
    ours: str
    remark: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """(what is followed, flags) of each span in our columns; a command of its own follows nothing."""
        found = []
        for span in SPAN.findall(f"{self.ours} {self.remark}"):
            if call := re.search(r"(?:^|\s)paceline (.+)", span):
                found.append(("", call[1]))
            elif span.startswith("--"):
                found.append((self.follows, span))
        return found


def rows_of(page: Path) -> Iterator[Row]:
    section = follows = ""
    for line in page.read_text().splitlines():
        if line.startswith("## "):
            section, follows = line[3:], ""
        elif found := FOLLOW.match(line):
            follows = found[1]
        elif line.startswith("| ") and not line.startswith(("| Original", "| ---")):
            theirs, ours, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            yield Row(page.stem, section, follows, theirs, ours, " ".join(rest))


ROWS = [row for page in PAGES for row in rows_of(page)]


def name_of(span: str) -> str:
    """A flag or a variable without its value; flags of bind.sh are told apart by theirs."""
    return span if span.startswith("--") else span.partition("=")[0]


# A system of the reader's own, as docs/how-to/write-a-recipe.md shows one.
MY_SITE = """from paceline.config.system import System

def a30():
    return System("cuda", ranks_per_node=8, memory_gib=24, precision="bf16")
"""


@pytest.fixture
def parses(monkeypatch, tmp_path):
    """A function that raises what a command is refused with."""
    (tmp_path / "my_site.py").write_text(MY_SITE)
    monkeypatch.chdir(tmp_path)

    def parses(command: str) -> None:
        with monkeypatch.context() as patch:
            parse(command, patch, lambda asked: check_cell(asked, patch))

    return parses


def flags_in(command: str) -> set[str]:
    """Names of a command's flags; a switch and its opposite are one."""
    words = [word.partition("=")[0] for word in shlex.split(command) if word.startswith("--")]
    return {word.replace("--no-", "--").replace(".no-", ".") for word in words}


def packed(rows: list[Row]) -> list[tuple[str, list[str]]]:
    """(the command that is followed, what follows it): as many together as have no flag twice, because parsing takes long."""
    lots: list[tuple[str, set[str], list[str]]] = []
    for follows, added in dict.fromkeys(pair for row in rows for pair in row.commands):
        named, taken = flags_in(added), flags_in(follows)
        lone = {"--scheduler"}  # others would not be refused beside it, and would be by themselves
        likely = (lot for lot in lots if follows and lot[0] == follows and not (lot[1] | named) & lone)
        fits = (lot for lot in likely if not (lot[1] | taken) & named)
        if (lot := next(fits, None)) is None:
            lots.append((follows, named, [added]))
        else:
            lot[1].update(named)
            lot[2].append(added)
    return [(follows, added) for follows, _, added in lots]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_of_our_cells_is_a_command_that_parses(page, parses):
    rows = [row for row in ROWS if row.page == page.stem and row.section not in TRANSLATED]
    assert sum(len(row.commands) for row in rows) > 20
    for follows, added in packed(rows):
        if not refusal(parses, " ".join([follows, *added]).strip()):
            continue
        for one in added:  # which one; or two that only contradict each other
            assert not (why := refusal(parses, f"{follows} {one}".strip())), f"{page.name}: paceline {follows} {one}: {why}"


def refusal(parses, command: str) -> str:
    """Why a command does not parse; "" where it does."""
    try:
        parses(command)
    except (PacelineError, SystemExit) as problem:
        return str(problem) or "refused"
    return ""


def test_each_row_has_a_command_or_says_why_not():
    for row in ROWS:
        word = row.ours.partition(":")[0].partition(" ")[0]
        assert row.ours.startswith("`") or word in WORDS, row
        if word in ("dead", "none"):
            assert row.ours.partition(":")[2].strip(), f"without a reason: {row}"


@pytest.mark.parametrize(("page", "section"), LISTED, ids=lambda value: value.replace(" ", "-"))
def test_every_flag_and_variable_has_a_row_and_no_other_has(page, section):
    wanted = LISTED[page, section].split()
    assert len(wanted) == len(set(wanted))
    spans = [span for row in ROWS if (row.page, row.section) == (page, section) for span in SPAN.findall(row.theirs)]
    named = [name_of(span) for span in spans]
    assert sorted(named) == sorted(wanted)


def test_the_overview_names_every_page():
    text = (ROOT / "docs/reference/migration.md").read_text()
    assert {page.name for page in PAGES} == set(re.findall(r"\(generated/migration/([\w-]+\.md)", text))


@pytest.mark.parametrize(
    "command",
    [
        "train ssd --optim.lrr 1",
        "train ssd --system.precision fp17",
        "train ssd --model.norm trunk",
        "launch ssd --system c4140 --nodes 4",
        "launch ssd --system c4140 --scheduler slurm --container-runtime pyxis",
        "launch ssd --system c4140 --scheduler hostfile",
    ],
)
def test_a_cell_that_the_real_command_refuses_would_be_noticed(command, parses):
    with pytest.raises((PacelineError, SystemExit)):
        parses(command)


LAUNCHES = [command for row in ROWS for follows, command in row.commands if not follows and command.startswith("launch ")]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=command, marks=() if "--dedicated-eval-ranks" in command else ONE_MORE)
        for command in dict.fromkeys(LAUNCHES)
    ],
)
def test_a_launch_of_a_published_system_has_a_plan_and_files(command, tmp_path, monkeypatch, capsys):
    """Beyond parsing: the batch is cut over the nodes, the walltime is predicted, the files are written."""
    (tmp_path / "my_site.py").write_text(MY_SITE)
    for name in ("coco", "coco2017/ssd_tf_records", "imagenet"):
        (tmp_path / name).mkdir(parents=True)
    # --weights takes names too: a file of that name stands for what would be brought.
    names = ("resnet34-mlperf", "ssd-resnet34-tensorflow", "resnet50-v1b")
    for weights in (*names, "resnet50_v1b.params", "model.ckpt-28152.index", "paceline.sif"):
        (tmp_path / weights).touch()
    (tmp_path / "hosts").write_text("".join(f"10.0.0.{number} slots=8\n" for number in range(1, 25)))
    for program in ("sbatch", "mpirun", "docker", "apptainer", "ssh"):
        (tmp_path / program).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch_checks, "count_devices", lambda _: 16)
    words = shlex.split(command.replace("/data/", f"{tmp_path}/"))
    code = front_door.main([*words, "--output-dir", str(tmp_path / "run"), "--dry-run"])
    assert code == 0, capsys.readouterr().err
    assert any((tmp_path / "run").rglob("launch/*"))
