export EXTRA_PARAMS='--lr-decay-epochs 60 75 --batch-size=4 --lr-warmup-epoch=26 --lr=4.57e-3 --weight-decay=4e-5 --bn-group=4 --gradient-predivide-factor=16 --input-batch-multiplier=10'
export DGXNNODES=64
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
WALLTIME_MINUTES=15
export WALLTIME=$((${NEXP} * ${WALLTIME_MINUTES}))
export DGXNGPU=8
export DGXSOCKETCORES=64
export DGXNSOCKET=2
export DGXHT=2
