#!/usr/bin/env bash
# A Slurm of one node on this machine, for trying `srun paceline train ...` without a cluster.
#
#   scripts/slurm_one_node.sh start DIR     then:  export SLURM_CONF=DIR/slurm.conf; srun -n 2 ...
#   scripts/slurm_one_node.sh stop DIR
#
# Needs root and Debian's packages slurmd, slurmctld, slurm-client and munge. Everything it writes lies in DIR, and it
# stops only the daemons whose process ids it noted there. No cgroups are used, so it also works inside a container.
set -euo pipefail

usage() { sed -n '2,8p' "$0" >&2; exit 2; }
[ $# -eq 2 ] || usage
verb=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)

running() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

stop_one() {
    running "$1" || return 0
    local pid
    pid=$(cat "$1")
    kill "$pid"
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
}

wait_for() {  # seconds, what, command...
    local tries=$(($1 * 10)) what=$2
    shift 2
    for _ in $(seq "$tries"); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done
    echo "slurm_one_node: $what did not come up; logs are in $dir" >&2
    exit 1
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start() {
    [ "$(id -u)" -eq 0 ] || { echo "slurm_one_node: needs root (slurmd starts tasks as their user)" >&2; exit 1; }
    host=$(hostname -s)
    chmod 755 "$dir"
    mkdir -p "$dir/state" "$dir/spool"
    if ! [ -s "$dir/munge.key" ]; then (umask 077 && head -c 128 /dev/urandom >"$dir/munge.key"); fi
    cat >"$dir/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
SlurmdTimeout=30
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
CONF
    export SLURM_CONF=$dir/slurm.conf
    munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
        --log-file="$dir/munged.log" --seed-file="$dir/munge.seed"
    wait_for 10 munged munge --socket="$dir/munge.socket" --no-input
    slurmctld -c
    wait_for 20 slurmctld scontrol ping
    slurmd -c
    wait_for 30 slurmd sh -c "sinfo --noheader --states=idle --format=%D | grep -q 1"
    echo "export SLURM_CONF=$dir/slurm.conf"
}

case $verb in
    start) start ;;
    stop) for name in slurmd slurmctld munged; do stop_one "$dir/$name.pid"; done ;;
    *) usage ;;
esac
