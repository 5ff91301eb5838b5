#!/usr/bin/env bash
# A Slurm of N nodes on this machine, for trying `paceline launch --scheduler slurm` and srun without a cluster.
#
#   scripts/slurm_nodes.sh start DIR [N]     N nodes (1); then:  export SLURM_CONF=DIR/slurm.conf; srun -N 2 -n 2 ...
#   scripts/slurm_nodes.sh stop DIR
#
# Needs root and Debian's packages slurmd, slurmctld, slurm-client and munge. Everything it writes lies in DIR, and it
# stops only the daemons whose process ids it noted there. No cgroups are used, so it also works inside a container.
# Several nodes are several slurmd on one host, each with a name and a port of its own: node1, node2, ...; each says it has
# all of the host's cores, and at least 4. A job that is queued again waits for its old credential to expire: 15 s here,
# 2 minutes in Slurm's own setting. No name server knows node1, so a prolog sets MASTER_ADDR=127.0.0.1 for each task that
# has no MASTER_ADDR: ranks meet at this address.
set -euo pipefail

usage() { sed -n '2,12p' "$0" >&2; exit 2; }
[ $# -ge 2 ] && [ $# -le 3 ] || usage
verb=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
nodes=${3:-1}

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
    echo "slurm_nodes: $what did not come up; logs are in $dir" >&2
    exit 1
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start() {
    [ "$(id -u)" -eq 0 ] || { echo "slurm_nodes: needs root (slurmd starts tasks as their user)" >&2; exit 1; }
    host=$(hostname -s)
    cores=$(nproc)
    [ "$nodes" -eq 1 ] || [ "$cores" -ge 4 ] || cores=4
    chmod 755 "$dir"
    mkdir -p "$dir/state"
    if ! [ -s "$dir/munge.key" ]; then (umask 077 && head -c 128 /dev/urandom >"$dir/munge.key"); fi
    printf '#!/bin/sh\n[ -n "$MASTER_ADDR" ] || echo export MASTER_ADDR=127.0.0.1\n' >"$dir/task_prolog"
    chmod 755 "$dir/task_prolog"
    {
        cat <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$(free_port)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=15
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=$dir/task_prolog
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=2
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=30
KillWait=5
MinJobAge=300
PriorityType=priority/basic
CONF
        for number in $(seq "$nodes"); do
            name=$host
            [ "$nodes" -eq 1 ] || name=node$number
            mkdir -p "$dir/spool-$name"
            echo "NodeName=$name NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=$cores State=UNKNOWN"
        done
        echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8"
    } >"$dir/slurm.conf"
    export SLURM_CONF=$dir/slurm.conf
    munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
        --log-file="$dir/munged.log" --seed-file="$dir/munge.seed"
    wait_for 10 munged munge --socket="$dir/munge.socket" --no-input
    slurmctld -c
    wait_for 20 slurmctld scontrol ping
    for name in $(sed -n 's/^NodeName=\([^ ]*\).*/\1/p' "$dir/slurm.conf"); do slurmd -c -N "$name"; done
    wait_for 30 slurmd sh -c "sinfo --noheader --states=idle --format=%D | grep -qx $nodes"
    echo "export SLURM_CONF=$dir/slurm.conf"
}

stop() {
    local file
    for file in "$dir"/slurmd-*.pid "$dir/slurmctld.pid" "$dir/munged.pid"; do stop_one "$file"; done
}

case $verb in
    start) start ;;
    stop) stop ;;
    *) usage ;;
esac
