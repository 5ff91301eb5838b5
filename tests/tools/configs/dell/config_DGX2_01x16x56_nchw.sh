export EXTRA_PARAMS='--batch-size=56 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4 --dali-workers=3 --data-layout=NCHW'
export DGXNNODES=1
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
export WALLTIME=00:20:00
export DGXNGPU=16
export DGXSOCKETCORES=24
export DGXNSOCKET=2
export DGXHT=2
