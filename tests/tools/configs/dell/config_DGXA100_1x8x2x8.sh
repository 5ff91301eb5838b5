export EXTRA_PARAMS='--lr-decay-epochs 61 76 --batch-size=2 --eval-batch-size=110 --lr-warmup-epoch=26 --lr=4.57e-3 --weight-decay=4e-5 --bn-group=8 --gradient-predivide-factor=32 --input-batch-multiplier=20'
export NUMEPOCHS=10
export DGXNNODES=1
export DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh | cut -d_ -f2-)
export WALLTIME=00:15:00
export DGXNGPU=8
export DGXSOCKETCORES=64
export DGXNSOCKET=2
export DGXHT=2
