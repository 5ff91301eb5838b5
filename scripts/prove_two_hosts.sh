#!/usr/bin/env bash
# Train on two hosts that a cable joins (scripts/two_hosts.sh), with torchrun and with mpirun: to the end, with the cable
# pulled in the middle, with Ctrl-C, with interfaces that are not there or lead nowhere. Prints what it did and what came out.
#
#   scripts/prove_two_hosts.sh PYTHON DIR >results/hosts/log.txt
#
# PYTHON has paceline's dependencies. Exit code 1 where weights differ or something is left behind. Needs root.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,7p' "$0" >&2; exit 2; }
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2"
dir=$(cd "$2" && pwd)
hosts=$root/scripts/two_hosts.sh
export PYTHONPATH=$root OMP_NUM_THREADS=1 PACELINE_CACHE=${PACELINE_CACHE:-$dir/cache}
cd "$root"
flags=(--system cpu --system.intra-op-threads 1 --max-steps 40 --save-every 10 --log-every 5 --max-val-images 8 --eval-every 200)
flags+=(--scheduler hostfile --hostfile "$dir/hostfile" --nodes 2)
bad=0

say() { printf '\n== %s\n' "$*"; }
fail() { echo "NOT AS IT SHOULD BE: $*"; bad=1; }
weights() { (cd "$1/checkpoints/last" && sha256sum -- *.safetensors) | sha256sum | cut -c1-16; }
launch() { "$hosts" on "$dir" node1 "$python" -m paceline launch ssd-demo "${flags[@]}" "$@"; }
told() { grep -E "failed|ending|broke off|asked|saved|stopped early|paceline: |network interface [a-z]" "$1" | grep -v "torch/" | tail -n "${2:-4}" | cut -c1-220; }

# Runs `launch ...` in the background, waits for `step` in its events; then $launched is its process.
launch_to() {  # step, run, flags...
    local step=$1 run=$2
    shift 2
    launch --output-dir "$run" "$@" >"$run.txt" 2>&1 &
    launched=$!
    while kill -0 "$launched" 2>/dev/null; do
        grep -q "\"step\": $step," "$run/events.jsonl" 2>/dev/null && return 0
        sleep 0.1
    done
    fail "step $step never came: $(tail -n 3 "$run.txt")"
}

left() {  # HOST
    "$hosts" on "$dir" "$1" ps axo stat=,args= | grep -v ^Z | grep -E "paceline|torch.distributed|attend.py|node.sh" | grep -v grep || true
}

quiet() {  # seconds
    local host
    for host in node1 node2; do
        for _ in $(seq "$1"); do [ -z "$(left $host)" ] && continue 2; sleep 1; done
        fail "left on $host: $(left $host)"
    done
    echo "no process of the run is left on node1 or node2"
}

compare() {
    local found
    found=$(weights "$1")
    [ "$found" = "$whole" ] || { fail "weights $found, not $whole"; return; }
    echo "weights $found: equal to the undisturbed run's"
}

trap 'exit 130' INT TERM
"$hosts" start "$dir"
trap '"$hosts" stop "$dir"' EXIT
printf 'node1 slots=1\nnode2 slots=1\n' >"$dir/hostfile"
"$python" -c 'import torch, platform; print("Python", platform.python_version(), "torch", torch.__version__)'
mpirun --version | head -n 1
ssh -V 2>&1

say "torchrun on both hosts, to the end"
code=0; launch --output-dir "$dir/whole" --launcher torchrun >"$dir/whole.txt" 2>&1 || code=$?
whole=$(weights "$dir/whole")
echo "exit code $code, weights $whole"; told "$dir/whole.txt" 2; quiet 10
[ "$code" = 0 ] || fail "exit code"

say "mpirun on both hosts, to the end"
code=0; launch --output-dir "$dir/mpi" --launcher mpirun >"$dir/mpi.txt" 2>&1 || code=$?
echo "exit code $code"; told "$dir/mpi.txt" 2; compare "$dir/mpi"; quiet 10

for start in torchrun mpirun; do
    say "$start: node2's cable is pulled after step 15"
    launch_to 15 "$dir/cut-$start" --launcher "$start"
    "$hosts" cut "$dir" node2
    began=$(date +%s); code=0; wait "$launched" || code=$?
    echo "exit code $code, $(($(date +%s) - began)) s after the cut; node1 said:"; told "$dir/cut-$start.txt"
    [ "$code" = 3 ] || fail "exit code"
    quiet 60
    "$hosts" join "$dir" node2
    say "$start: the cable is back, the same command again"
    code=0; launch --output-dir "$dir/cut-$start" --launcher "$start" >"$dir/back-$start.txt" 2>&1 || code=$?
    echo "exit code $code"; grep -i "resum\|goes on\|going on" "$dir/back-$start.txt" | head -n 2 || true; compare "$dir/cut-$start"

    say "$start: Ctrl-C after step 15, and the same command again"
    launch_to 15 "$dir/stop-$start" --launcher "$start"
    "$hosts" on "$dir" node1 pkill -INT -f -- "-m paceline launch .*stop-$start"
    code=0; wait "$launched" || code=$?
    echo "exit code $code"; told "$dir/stop-$start.txt" 3; quiet 20
    [ "$code" = 75 ] || fail "exit code"
    code=0; launch --output-dir "$dir/stop-$start" --launcher "$start" >"$dir/on-$start.txt" 2>&1 || code=$?
    echo "exit code $code"; compare "$dir/stop-$start"
done

say "an interface that no host has"
code=0; launch --output-dir "$dir/eth9" --system.interface eth9 >"$dir/eth9.txt" 2>&1 || code=$?
echo "exit code $code"; tail -n 2 "$dir/eth9.txt"
say "an interface that both have and that leads nowhere"
for number in 1 2; do
    "$hosts" on "$dir" node$number ip link add nowhere0 type veth peer name nowhere1
    "$hosts" on "$dir" node$number ip address add "10.88.$number.1/24" dev nowhere0
    "$hosts" on "$dir" node$number ip link set nowhere0 up
    "$hosts" on "$dir" node$number ip link set nowhere1 up
done
began=$(date +%s); code=0
launch --output-dir "$dir/nowhere" --system.interface nowhere0 --system.env GLOO_SOCKET_IFNAME=nowhere0 >"$dir/nowhere.txt" 2>&1 || code=$?
echo "exit code $code after $(($(date +%s) - began)) s"; told "$dir/nowhere.txt" 4; quiet 30

say "hosts that cannot be reached"
printf 'node3\n10.77.0.9\n' >"$dir/hostfile"
code=0; launch --output-dir "$dir/absent" >"$dir/absent.txt" 2>&1 || code=$?
echo "exit code $code"; tail -n 2 "$dir/absent.txt"
exit $bad
