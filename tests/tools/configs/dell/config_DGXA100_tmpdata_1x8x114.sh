export CREATE_TMP_FILE_FROM=/scratch/coco2017.tar
export EXTRA_PARAMS='--batch-size=114 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4'
export DGXNNODES=1
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
export WALLTIME=00:15:00
export DGXNGPU=8
export DGXSOCKETCORES=64
export DGXNSOCKET=2
export DGXHT=2
export NUMEPOCHS=10
