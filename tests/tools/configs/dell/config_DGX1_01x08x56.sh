export EXTRA_PARAMS='--batch-size=56 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4'
export DGXNNODES=1
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
WALLTIME_MINUTES=30
export WALLTIME=$((${NEXP} * ${WALLTIME_MINUTES}))
export DGXNGPU=8
export DGXSOCKETCORES=20
export DGXNSOCKET=2
export DGXHT=2
