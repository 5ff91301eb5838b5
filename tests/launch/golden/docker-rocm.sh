#!/usr/bin/env bash
# Runs a command inside the image registry.example.com/team/paceline:0.1.0 with docker:  container.sh COMMAND...  (docs/how-to/cluster/containers.md)
set -euo pipefail
mkdir -p /home/ann/.cache/paceline  # paceline's cache
mkdir -p /runs/ssd  # the run's folder
# What `paceline doctor` inside compares with the container: driver, MPI, PMIx, user, limits.
PACELINE_HOST=$(python3 /runs/ssd/launch/host_facts.py 2>/dev/null || true)
export PACELINE_HOST
flags=(
    --rm  # nothing of it stays behind
    --init  # a first process that passes signals on, so that Ctrl-C and preemption reach the run
    --user "$(id -u):$(id -g)"  # files that it writes are yours, not root's
    --ipc host  # NCCL joins a node's devices through /dev/shm; Docker's own has 64 MiB
    --ulimit memlock=-1  # InfiniBand and RoCE pin the memory that they send from
    --ulimit stack=67108864  # deep stacks of compilers: torch.compile runs them
    --device /dev/kfd  # AMD: the compute driver
    --device /dev/dri  # AMD: the devices themselves
    --security-opt seccomp=unconfined  # AMD: memory is mapped between processes, which Docker's filter forbids
    --mount 'type=bind,source=/data/coco,target=/data/coco,readonly'  # named by /data/coco
    --mount 'type=bind,source=/home/ann/.cache/paceline,target=/home/ann/.cache/paceline'  # paceline's cache
    --mount 'type=bind,source=/runs/ssd,target=/runs/ssd'  # the run's folder
    --workdir /  # no path of the command is relative
    --env OMP_NUM_THREADS  # compute threads a rank
    --env PACELINE_EXIT_CODE_FILE  # rank 0 leaves its exit code here; launchers swallow it
    --env PYTHONUNBUFFERED  # what ranks print is seen at once
    --env PACELINE_HOST  # the host's facts, for `paceline doctor`
)
if [ -e /dev/infiniband ]; then  # InfiniBand or RoCE, where the host has it
    flags+=(--device /dev/infiniband)
fi
if [ -t 0 ] && [ -t 1 ]; then  # by hand, at a terminal
    flags+=(--interactive --tty)
fi
for group in $(id -G); do flags+=(--group-add "$group"); done  # every group of yours, not the first alone
# Inside, before the command; the shell there fills it in.
# shellcheck disable=SC2016
guard='python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 has no paceline in it. Build one: paceline container build; or name another with --container-image." >&2
[ -z "${PACELINE_EXIT_CODE_FILE:-}" ] || echo 2 >"$PACELINE_EXIT_CODE_FILE"
exit 2'
exec docker run "${flags[@]}" registry.example.com/team/paceline:0.1.0 sh -c "$guard" registry.example.com/team/paceline:0.1.0 "$@"
