export EXTRA_PARAMS='--batch-size=56 --lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4 --dali-workers=3'
export NNODES=4
export WALLTIME=00:30:00
export NGPU=4
export SOCKETCORES=20
export NSOCKET=2
export HT=1
