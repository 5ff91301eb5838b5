export EXTRA_PARAMS='--batch-size=56 --eval-batch-size=160 --warmup=650 --lr=3.2e-3 --wd=1.3e-4'
export DGXNNODES=2
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
WALLTIME_MINUTES=20
export WALLTIME=$((${NEXP} * ${WALLTIME_MINUTES}))
export DGXNGPU=8
export DGXSOCKETCORES=64
export DGXNSOCKET=2
export DGXHT=2
