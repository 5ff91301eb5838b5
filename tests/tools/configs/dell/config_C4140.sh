export EXTRA_PARAMS='--batch-size=128 --lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4'
export NNODES=1
export WALLTIME=00:30:00
export NGPU=4
export SOCKETCORES=20
export NSOCKET=2
export HT=1
export TOBIND=0
export NCCL_SOCKET_IFNAME=
