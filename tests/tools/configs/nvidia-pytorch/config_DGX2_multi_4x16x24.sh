export EXTRA_PARAMS='--batch-size=24 --eval-batch-size=40 --warmup=850 --num-workers=3 --lr=2.9e-3 --wd=1.7e-4 --use-nvjpeg'
export DGXNNODES=4
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
WALLTIME_MINUTES=15
export WALLTIME=$((${NEXP} * ${WALLTIME_MINUTES}))
export DGXNGPU=16
export DGXSOCKETCORES=24
export DGXNSOCKET=2
export DGXHT=2
