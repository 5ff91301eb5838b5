export CREATE_TMP_FILE_FROM=/scratch/coco2017.tar
export EXTRA_PARAMS='--batch-size=56 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4'
export DGXNNODES=1
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
export WALLTIME=00:10:00
export DGXNGPU=8
export DGXSOCKETCORES=20
export DGXNSOCKET=2
export DGXHT=2
export NUMEPOCHS=10
