"""Twenty lines that a user of the four systems could have typed, written before the parser was read.

Each names the flags that its program receives (`given`, as the program's own parser would keep them), the number of
processes or devices, and nothing of paceline: what the original would do is computed from them by `originals`.
"""

from lines import Line

UNSEEN = (
    Line(
        "mxnet-ssd",
        "mpirun -np 4 --bind-to none python ssd_main.py --batch-size 64 --lr 2.5e-3 --lr-warmup-epoch 3 --epochs 60"
        " --coco-root /data/coco --pretrained-backbone /w/resnet34-333f7ec4.pickle",
        4,
        {"batch_size": 64, "lr": 2.5e-3, "lr_warmup_epochs": 3, "epochs": 60, "pretrained_backbone": True},
    ),
    Line(
        "mxnet-ssd",
        'docker run --gpus all --rm -e NUMEPOCHS=65 -e "EXTRA_PARAMS=--batch-size=96 --lr-warmup-epoch=4.5 --lr=3e-3'
        ' --weight-decay=2e-4" -e NGPU=8 -v /raid/coco:/data mlperf/ssd:mxnet ./run_and_time.sh',
        8,
        {
            "batch_size": 96,
            "lr": 3e-3,
            "lr_warmup_epochs": 4.5,
            "weight_decay": 2e-4,
            "epochs": 65,
            "pretrained_backbone": True,
        },
    ),
    Line(
        "mxnet-ssd",
        "NEXP=1 DATADIR=/d LOGDIR=/l PRETRAINED_DIR=/p SYSTEM=2xC4140 sbatch -N 2 -n 8 --export=ALL,NUMEPOCHS=60 run.slurm",
        8,
        {
            "batch_size": 128,
            "lr": 5.84e-3,
            "lr_warmup_epochs": 5.25,
            "weight_decay": 1.6e-4,
            "epochs": 60,
            "pretrained_backbone": True,
        },
        nodes=2,
        folder="dell",
    ),
    Line(
        "mxnet-ssd",
        'bash -c "cd /workspace/ssd && python ssd_main_async.py --batch 32 --precision fp32 --data-layout NCHW'
        ' --lr-decay-epochs 30 40 --epochs 50"',
        1,
        {"batch_size": 32, "lr_decay_epochs": (30, 40), "epochs": 50},
    ),
    Line(
        "mxnet-ssd",
        "mpirun -np 16 -H a:8,b:8 -x NCCL_DEBUG python ssd_main.py --batch-size=56 --lr=3.2e-3 --lr-warmup-epochs=5"
        " --weight-decay=1.3e-4 --bn-group 2 -j 3 -t 22.5 --val-interval 2 --seed 7",
        16,
        {"batch_size": 56, "lr": 3.2e-3, "lr_warmup_epochs": 5, "weight_decay": 1.3e-4, "target_map": 22.5},
        nodes=2,
    ),
    Line(
        "mxnet-ssd",
        "singularity exec --nv -B /data:/data sandbox-mxnet-ngc20.06 mpirun --np 4 python -u ssd_main_async.py"
        " --batch-size 120 --lr 2.92e-3 --lr-warmup-epoch 5.25 --weight-decay 1.6e-4 --async-val --results /results"
        " --save-interval 5",
        4,
        {"batch_size": 120, "lr": 2.92e-3, "lr_warmup_epochs": 5.25, "weight_decay": 1.6e-4},
    ),
    Line(
        "gaudi-ssd",
        "python3 ssd.py -e 32 -b 64 -d fp32 --no_hpu --data_dir /d --model_dir /m",
        1,
        {"epochs": 32, "batch_size": 64},
    ),
    Line(
        "gaudi-ssd",
        "mpirun --allow-run-as-root --np 16 -H h1:8,h2:8 python3 ssd.py --use_horovod -e 64 -b 128 --k 2"
        " --distributed_bn --lr_warmup_epoch 7 --data_dir=/d",
        16,
        {"epochs": 64, "batch_size": 128, "k": 2, "lr_warmup_epoch": 7},
        nodes=2,
    ),
    Line(
        "gaudi-ssd",
        "python ssd.py -b256 -e 20 --base_lr 2.5e-3 --weight_decay 1e-4 -s 500 -f -v 10",
        1,
        {"epochs": 20, "batch_size": 256, "base_lr": 2.5e-3, "weight_decay": 1e-4, "steps": 500},
    ),
    Line(
        "gaudi-ssd",
        "HABANA_VISIBLE_DEVICES=0 python3 demo_ssd.py -e 50 -b 128 --hvd_workers 8 --model_dir /tmp/x",
        8,
        {"epochs": 50, "batch_size": 128},
    ),
    Line(
        "gaudi-ssd",
        "docker run -it --runtime=habana -e HABANA_VISIBLE_DEVICES=all --net=host gaudi:1.5 mpirun --allow-run-as-root"
        " -np 4 python3 /root/ssd.py --use_horovod --epochs 40.7 --batch_size 96 --dtype bf16",
        4,
        {"epochs": 40.7, "batch_size": 96},
    ),
    Line(
        "mxnet-resnet",
        "BATCHSIZE=256 LR=8 KVSTORE=horovod OPTIMIZER=sgdwfastlars LRSCHED=pow2 NUMEPOCHS=40 WARMUP_EPOCHS=4 DGXNGPU=4"
        " LABELSMOOTHING=0.1 WD=5e-5 mpirun -np 4 ./run_and_time.sh",
        4,
        {
            "batch_size": 256,
            "lr": 8.0,
            "optimizer": "sgdwfastlars",
            "lr_step_epochs": "pow2",
            "num_epochs": 40,
            "warmup_epochs": 4,
            "wd": 5e-5,
        },
        environment=True,
    ),
    Line(
        "mxnet-resnet",
        "python train_imagenet.py --gpus 0 --kv-store device --batch-size 128 --lr 0.1 --optimizer sgd --lr-step-epochs"
        " 30,60,80 --num-epochs 90 --warmup-epochs 5 --warmup-strategy linear --wd 1e-4 --use-dali --data-root /data",
        1,
        {
            "batch_size": 128,
            "lr": 0.1,
            "optimizer": "sgd",
            "lr_step_epochs": "30,60,80",
            "num_epochs": 90,
            "warmup_epochs": 5,
            "wd": 1e-4,
        },
    ),
    Line(
        "mxnet-resnet",
        "mpirun --np 16 -H n1:8,n2:8 python train_imagenet.py --batch-size 204 --lr 10.5 --num-epochs 37"
        " --warmup-epochs 2 --use-dali --data-root /data --bn-group 2 --eval-offset 3",
        16,
        {"batch_size": 204, "lr": 10.5, "num_epochs": 37, "warmup_epochs": 2},
        nodes=2,
    ),
    Line(
        "mxnet-resnet",
        "source config_DGXH100.sh && BATCHSIZE=200 CONT=reg/rn50:23.04 DATADIR=/lustre/rec LOGDIR=/l sbatch -N 2 -t"
        " $WALLTIME run.sub",
        16,
        {
            "batch_size": 200,
            "lr": 11.0,
            "optimizer": "sgdwfastlars",
            "lr_step_epochs": "pow2",
            "num_epochs": 37,
            "warmup_epochs": 2,
            "wd": 5e-5,
        },
        nodes=2,
        folder="nvidia-resnet",
        environment=True,
    ),
    Line(
        "mxnet-resnet",
        "docker run --gpus=all -e DGXNGPU=8 -e BATCHSIZE=208 -e OPTIMIZER=sgd -e LR=1.7 -e NUMEPOCHS=50 -e"
        " KVSTORE=horovod -v /data:/data rn50:latest mpirun --np 8 ./run_and_time.sh",
        8,
        {"batch_size": 208, "optimizer": "sgd", "lr": 1.7, "num_epochs": 50},
        environment=True,
    ),
    Line(
        "mxnet-resnet",
        "source config_DGXH100.sh && SYNTH_DATA=1 DISABLE_CG=1 CONT=x DATADIR=/d ./run_with_docker.sh",
        8,
        {
            "batch_size": 400,
            "lr": 11.0,
            "optimizer": "sgdwfastlars",
            "lr_step_epochs": "pow2",
            "num_epochs": 37,
            "warmup_epochs": 2,
            "wd": 5e-5,
        },
        folder="nvidia-resnet",
        environment=True,
    ),
    Line(
        "gluoncv-maskrcnn",
        "python train_mask_rcnn.py --gpus 0,1,2,3 --batch-size 4 --use-fpn -j 8 --epochs 14 --lr-decay-epoch 9,12",
        4,
        {"batch_size": 4, "epochs": 14, "lr_decay_epoch": (9, 12)},
    ),
    Line(
        "gluoncv-maskrcnn",
        "mpirun -np 16 -H ip1:8,ip2:8 python train_mask_rcnn.py --horovod --amp --use-fpn --batch-size 32 --lr 0.04"
        " --lr-warmup 500 --epochs 12 --lr-decay-epoch 8,11 --clip-gradient 1.5",
        16,
        {"batch_size": 32, "lr": 0.04, "lr_warmup": 500, "epochs": 12, "lr_decay_epoch": (8, 11)},
        nodes=2,
    ),
    Line(
        "gluoncv-maskrcnn",
        "bash -c 'export MXNET_USE_FUSION=0; mpirun -np 8 python3 train_mask_rcnn.py --horovod --use-fpn --batch-size 8"
        " --wd 5e-4 --momentum 0.95 --norm-layer gn custom-model --image-short 640,800 --rpn-channel 512'",
        8,
        {"batch_size": 8, "wd": 5e-4, "momentum": 0.95},
    ),
)
