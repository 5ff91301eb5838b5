#!/usr/bin/env bash
# What `paceline launch` promises, done once on a real Slurm of two nodes, real Open MPI and torchrun; a line for each claim.
#
#   scripts/prove_launch.sh DIR        root; Debian's slurmd, slurmctld, slurm-client, munge, openmpi-bin; about ten minutes
#
# results/launch/README.md has what came out. DIR is left as it is, with every file that was written and every log.
set -uo pipefail
[ $# -eq 1 ] || { sed -n '2,6p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" && cd "$1" || exit 2
python=${PYTHON:-python}
export PYTHONPATH=$here OMP_NUM_THREADS=1 PACELINE_CACHE=$PWD/cache
training=(ssd-demo --system cpu --system.precision fp32 --max-train-images 64 --max-val-images 16 --log-every 5)
short=(--max-steps 40 --save-every 10 --eval-every 20)
failures=0

launch() {  # run, words...
    local run=$1
    shift
    "$python" -m paceline launch "${training[@]}" --output-dir "$PWD/$run" "$@" >"$run.log" 2>&1 &
    launched=$!  # the launch itself, not a shell around it: a signal shall reach it
}
claim() {  # what, was it so
    if [ "$2" = 0 ]; then echo "yes  $1"; else echo "NO   $1"; failures=$((failures + 1)); fi
}
same() {  # run, other run: the last checkpoint's tensors, byte for byte
    local file
    for file in "$1"/checkpoints/last/*.safetensors; do
        cmp -s "$file" "$2/checkpoints/last/${file##*/}" || return 1
    done
    [ -e "$1/checkpoints/last/model.safetensors" ]
}
ends_with() { tail -n 1 "$1/events.jsonl" | grep -q "\"event\": \"end\".*\"status\": \"$2\""; }
until_there() { for _ in $(seq 3000); do [ -e "$1" ] && return 0; sleep 0.1; done; return 1; }

"$here/scripts/slurm_nodes.sh" start "$PWD/slurm" 2 >/dev/null || exit 1
trap '"$here/scripts/slurm_nodes.sh" stop "$PWD/slurm"' EXIT
export SLURM_CONF=$PWD/slurm/slurm.conf
slurm=(--scheduler slurm --nodes 2)

for start in srun mpirun torchrun; do
    launch "$start" "${slurm[@]}" --launcher $start "${short[@]}"
    wait $launched
    claim "through Slurm on 2 nodes, $start: trains to the end, exit code 0" $?
done
same srun mpirun && same srun torchrun
claim "the three end with the same weights, byte for byte" $?

for start in srun mpirun; do
    launch "requeued-$start" "${slurm[@]}" --launcher $start "${short[@]}"
    until_there "requeued-$start/checkpoints/step-000010"
    scontrol requeue "$(cat "requeued-$start/launch/job-number")"
    wait $launched
    claim "$start, scontrol requeue in the middle: goes on by itself and ends with exit code 0" $?
    grep -q "resumed from step-" "requeued-$start.log" && same srun "requeued-$start"
    claim "$start, requeued: it was resumed, and its weights are those of the undisturbed run, byte for byte" $?
done

long=(--max-steps 100000 --save-every 100000 --eval-every 100000 --walltime 2m --slurm.grace-seconds 20)
launch walltime "${slurm[@]}" "${long[@]}" --slurm.no-requeue
wait $launched
code=$?
[ $code = 75 ] && ends_with walltime interrupted
claim "the walltime of 2 minutes is up: the run saves and ends, exit code $code" $?
before=$(readlink walltime/checkpoints/last)
launch walltime "${slurm[@]}" "${long[@]}"
for _ in $(seq 3000); do [ "$(grep -c 'resumed from' walltime/launch/output.txt)" -ge 2 ] && break; sleep 0.1; done
sleep 10
kill -INT $launched
wait $launched
code=$?
[ $code = 75 ] && [ "$(readlink walltime/checkpoints/last)" \> "$before" ]
claim "the next job went on from there, was queued again by itself, and Ctrl-C ended it with $code" $?

for ranks in 2 4; do
    for start in torchrun mpirun; do
        launch "$start-$ranks" --launcher $start --system.ranks-per-node $ranks "${short[@]}"
        wait $launched
        claim "here, $start, $ranks ranks: trains to the end, exit code 0" $?
    done
    same torchrun-$ranks mpirun-$ranks
    claim "torchrun and mpirun with $ranks ranks end with the same weights, byte for byte" $?
done
same srun torchrun-2
claim "2 ranks here and 2 ranks on 2 nodes end with the same weights, byte for byte" $?
echo "$failures claims failed"
[ $failures -eq 0 ]
