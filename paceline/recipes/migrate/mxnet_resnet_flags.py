"""ResNet-50 in MXNet: the flags of train_imagenet.py (its argparse entries and set_defaults, common/fit.py, common/dali.py)."""

from __future__ import annotations

from paceline.recipes.migrate.table import direct, gone, numbers, settled


def falls(text: str) -> str:
    """The kind of --lr-step-epochs. Raises ValueError for what is neither pow2 nor a list of epochs."""
    return text if "pow" in text else numbers(text)


falls.__name__ = "pow2 or list of epochs"


def shape(text: str) -> str:
    """The kind of --image-shape. Raises ValueError for another text than channels and two sides."""
    channels, height, width = map(int, text.split(","))
    if min(channels, height, width) < 1 or height != width:
        raise ValueError(text)
    return text


shape.__name__ = "channels and two equal sides"

TRAIN_IMAGES = 1_281_167
DALI = "dead: DALI's memory"
LAYOUT = "--system.channels-last"

FLAGS = (
    gone("--verbose", int, 0, "none: chosen convolution algorithms are not printed"),
    settled("--seed", int, None, "seed", "--seed 7", "1 if unsaid, never random"),
    gone("--custom-bn-off", int, 0, "dead: not used there"),
    direct("--fuse-bn-relu", int, 1, "--system.compile", values={"0": "--system.no-compile"}),
    direct("--fuse-bn-add-relu", int, 1, "--system.compile", values={"0": "--system.no-compile"}),
    settled("--input-layout", str, "NHWC", "", LAYOUT, "photos arrive as uint8", by="system"),
    settled("--conv-layout", str, "NHWC", "", LAYOUT, by="system"),
    gone("--conv-algo", int, 1, "automatic: cuDNN searches once for each shape"),
    gone("--force-tensor-core", int, 1, "automatic: with `--system.precision fp16` or bf16"),
    settled("--batchnorm-layout", str, "NHWC", "", LAYOUT, by="system"),
    settled("--batchnorm-eps", float, 1e-5, "model.bn_eps", "--model.bn-eps 1e-5"),
    settled("--batchnorm-mom", float, 0.9, "model.bn_momentum", "--model.bn-momentum 0.1", "PyTorch's sense: 1 minus theirs"),
    settled("--pooling-layout", str, "NCHW", "", LAYOUT, by="system"),
    gone("--kv-store", str, "horovod", "automatic: NCCL, gloo, HCCL or XCCL, by device"),
    settled("--bn-group", int, 1, "bn_span", "--bn-span 800", "images, not ranks; over neighbouring ranks, also of two nodes"),
    gone("--use-nvshmem", int, 0, "dead: joined statistics travel with the backend"),
    direct("--network", str, "resnet-v1b-stats-fl", "--model.trunk resnet", "their seven graphs are one network with other fusions", values={}),
    settled("--num-layers", int, 50, "model.depth", "--model.depth 50"),
    gone("--num-classes", int, 1000, "automatic: those of the data"),
    gone("--gpus", str, None, "automatic: a rank takes the device of its local number", "choose with CUDA_VISIBLE_DEVICES"),
    settled("--num-epochs", int, 37, "epochs", "--epochs 37"),
    settled("--lr", float, 11.0, "optim.lr", "--optim.lr 11.0"),
    settled("--lr-factor", float, 0.1, "schedule.factor", "--schedule.kind steps --schedule.boundaries 30 60 --schedule.factor 0.1", "1 or more: `--schedule.kind constant`"),
    settled("--lr-step-epochs", falls, "pow2", "schedule.kind schedule.boundaries schedule.end_lr", "--schedule.kind poly2", "a list: `--schedule.kind steps --schedule.boundaries 30 60 80`"),
    gone("--initializer", str, "default", "dead: not used there", "`--model.init mlperf` is what they had"),
    settled("--label-smoothing", float, 0.1, "model.label_smoothing", "--model.label-smoothing 0.1 --model.smoothing mxnet"),
    settled("--optimizer", str, "sgdwfastlars", "optim.kind optim.momentum_form optim.decay_on", "--optim.kind lars", "sgdwlars and sgdwfastlars are one lars here, sgdwfastlarsv2 likewise with `--optim.decay-on all`; sgd: `--optim.kind sgd`"),
    settled("--lars-eps", float, 0.0, "optim.lars_eps", "--optim.lars-eps 0"),
    settled("--lars-eta", float, 0.001, "optim.lars_eta", "--optim.lars-eta 0.001"),
    settled("--mom", float, 0.9, "optim.momentum", "--optim.momentum 0.9", "with MXNet's correction: `--optim.momentum-form lr_inside_corrected`"),
    settled("--wd", float, 5e-5, "optim.weight_decay", "--optim.weight-decay 5e-5"),
    settled("--batch-size", int, 400, "global_batch optim.lr", "--global-batch 3200 --optim.lr 11", "of all GPUs together"),
    direct("--disp-batches", int, 20, "--log-every {}", "dead there"),
    direct("--model-prefix", str, None, "--out {}", "dead there", example="runs/rn50"),
    direct("--save-period", int, 1, "--save-every 401", "dead there; steps", values={}),
    settled("--eval-period", int, 4, "quality.every", "--quality.every 4"),
    settled("--eval-offset", int, 2, "quality.first", "--quality.first 3", "epochs from 1: theirs plus 1"),
    gone("--top-k", int, 0, "fixed: top-1 and top-5"),
    settled("--dtype", str, "float16", "", "--system.precision fp16 --system.loss-scale 400", "or fp32, bf16; their gradients are sums over a GPU's images, ours means: that number is the scale", by="system"),
    settled("--warmup-epochs", int, 2, "schedule.warmup", "--schedule.warmup 2"),
    direct("--warmup-strategy", str, "linear", "--schedule.warmup-from 0", "linear is the one there is", values={}),
    direct("--logging-dir", str, "logs", "--out {}", "dead there", example="runs/rn50", values={}),
    direct("--log", str, "", "--out {}", "dead there", example="runs/rn50", values={}),
    settled("--bn-gamma-init0", bool, False, "model.zero_init_last_gamma", "--model.zero-init-last-gamma"),
    direct("--epoch-size", int, 0, "--steps 100", "dead there", values={}),
    direct("--profile-worker-suffix", str, "", "--profile 50:53", values={}),
    gone("--profile-server-suffix", str, "", "dead: no parameter servers"),
    settled("--accuracy-threshold", float, 0.759, "quality.targets", "--quality.targets top1 0.759", "met at the target itself; theirs had to be above it", row="target"),
    direct("--profile", int, 0, "--profile 50:53", values={"1": "--profile 50:53"}),
    direct("--load-checkpoint-path", str, None, "--weights RUN/checkpoints/best", "dead there", values={}),
    direct("--save-checkpoint-path", str, None, "--out {}", "a folder of their `.npy` is read by `--weights FOLDER`", example="runs/rn50"),
    direct("--e2e-cuda-graphs", int, 0, "--system.graph", "the whole step becomes one CUDA graph for each kind of batches (docs/systems.md)", values={"1": "--system.graph"}),
    gone("--data-train", str, None, "paceline prepare recordio /data/train.rec --val /data/val.rec"),
    gone("--data-train-idx", str, "", "paceline prepare recordio /data/train.rec --val /data/val.rec"),
    gone("--data-val", str, None, "paceline prepare recordio /data/train.rec --val /data/val.rec"),
    gone("--data-val-idx", str, "", "paceline prepare recordio /data/train.rec --val /data/val.rec"),
    settled("--data-root", str, "", "", "--data /data/imagenet", by="data"),
    direct("--use-dali", bool, False, "--no-synthetic", "data are the default; their line without it is `--synthetic` here", values={}),
    settled("--max-random-area", float, 1.0, "input.area", "--input.area 0.05 1.0"),
    settled("--min-random-area", float, 0.05, "input.area", "--input.area 0.05 1.0"),
    settled("--min-random-aspect-ratio", float, 3 / 4, "input.aspect", "--input.aspect 0.75 1.3333"),
    settled("--max-random-aspect-ratio", float, 4 / 3, "input.aspect", "--input.aspect 0.75 1.3333"),
    gone("--input-batch-multiplier", int, 1, "dead: the loader renders photos one by one on threads"),
    gone("--separ-val", bool, False, "none: each photo is scored once, by one rank"),
    direct("--dali-threads", int, 6, "--system.loader-threads {}", "0 is automatic"),
    settled("--image-shape", shape, "4,224,224", "input.size model.stem_channels", "--input.size 224 --model.stem-channels 4"),
    direct("--num-examples", int, TRAIN_IMAGES, "--limit-train {}", "all if unsaid"),
    direct("--num-val-examples", int, -1, "--limit-val {}", "all if unsaid", example="50000"),
    gone("--dali-dont-use-mmap", int, 0, "dead: photos are read, not mapped"),
    gone("--dali-bytes-per-sample-hint", int, 10485760, "dead: not passed on there"),
    gone("--dali-tmp-buffer-hint", int, 355568328, DALI),
    gone("--dali-decoder-buffer-hint", int, 1315942, DALI),
    gone("--dali-crop-buffer-hint", int, 165581, DALI),
    gone("--dali-normalize-buffer-hint", int, 441549, DALI),
    gone("--dali-hw-decoder-load", float, 0.99, "none: no decoder on the accelerator"),
    direct("--dali-prefetch-queue", int, 5, "--system.prefetch {}"),
    gone("--dali-nvjpeg-memory-padding", int, 256, DALI),
    gone("--dali-preallocate-width", int, 5980, DALI),
    gone("--dali-preallocate-height", int, 6430, DALI),
    direct("--dali-roi-decode", int, 1, "--input.decoder nvimgcodec", "simplejpeg decodes at the scale that the crop needs", values={}),
    direct("--dali-cache-size", int, 12288, "--system.cache 96GiB", "of a node, for encoded photos; theirs of a GPU, for decoded ones", values={}),
    gone("--lazy_init_sanity", bool, False, "none: no proof that data are untouched before the run starts"),
)  # fmt: skip
