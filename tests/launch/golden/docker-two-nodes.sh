#!/usr/bin/env bash
# Run a command in the image registry.example.com/team/paceline:0.1.0 with docker:  container.sh COMMAND...  (docs/how-to/cluster/containers.md)
set -euo pipefail
mkdir -p /home/ann/.cache/paceline  # paceline's cache
mkdir -p /runs/ssd  # the run's folder
# `paceline doctor` in the container compares it with the host: driver, MPI, PMIx, user, and limits.
PACELINE_HOST=$(python3 /runs/ssd/launch/host_facts.py 2>/dev/null || true)
export PACELINE_HOST
flags=(
    --rm  # removes the container at the end
    --init  # an init process that forwards signals, so that Ctrl-C and preemption reach the run
    --user "$(id -u):$(id -g)"  # files belong to you instead of root
    --ipc host  # NCCL connects the devices of a node through /dev/shm; Docker's default is 64 MiB
    --ulimit memlock=-1  # InfiniBand and RoCE pin the memory that they send
    --ulimit stack=67108864  # the compilers of torch.compile need a large stack
    --gpus all  # NVIDIA devices and the driver library of the host (nvidia-container-toolkit)
    --network host  # ranks of other nodes connect to the address of the node
    --cap-add SYS_NICE  # Open MPI binds memory to NUMA nodes, which Docker blocks by default
    --mount 'type=bind,source=/data/coco,target=/data/coco,readonly'  # named by /data/coco
    --mount 'type=bind,source=/home/ann/.cache/paceline,target=/home/ann/.cache/paceline'  # paceline's cache
    --mount 'type=bind,source=/runs/ssd,target=/runs/ssd'  # the run's folder
    --workdir /  # the command has no relative paths
    --env OMP_NUM_THREADS  # compute threads a rank
    --env PACELINE_EXIT_CODE_FILE  # rank 0 writes its exit code here; launchers do not return it
    --env PYTHONUNBUFFERED  # output of the ranks appears immediately
    --env PET_NNODES  # torchrun: number of nodes
    --env PET_NODE_RANK  # torchrun: index of this node
    --env PET_MASTER_ADDR  # torchrun: node of rank 0
    --env PET_MASTER_PORT  # torchrun: port of its store
    --env PACELINE_HOST  # description of the host, for `paceline doctor`
)
if [ -e /dev/infiniband ]; then  # InfiniBand or RoCE, if the host has it
    flags+=(--device /dev/infiniband)
fi
if [ -t 0 ] && [ -t 1 ]; then  # if started from a terminal
    flags+=(--interactive --tty)
fi
for group in $(id -G); do flags+=(--group-add "$group"); done  # all groups of the user, not only the first
# This runs in the container before the command; the shell in the container expands it.
# shellcheck disable=SC2016
guard='python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 does not contain paceline. Run paceline container build, or set another --container-image." >&2
[ -z "${PACELINE_EXIT_CODE_FILE:-}" ] || echo 2 >"$PACELINE_EXIT_CODE_FILE"
exit 2'
exec docker run "${flags[@]}" registry.example.com/team/paceline:0.1.0 sh -c "$guard" registry.example.com/team/paceline:0.1.0 "$@"
