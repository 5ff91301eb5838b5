#!/usr/bin/env bash
# Two hosts on this machine, for trying what needs a network between them: own names, addresses, processes, and an sshd.
#
#   scripts/two_hosts.sh start DIR                  node1 (10.77.0.1) and node2 (10.77.0.2), joined by a switch
#   scripts/two_hosts.sh on DIR HOST COMMAND...     run a command there; `ssh node2` works from node1, and back
#   scripts/two_hosts.sh cut DIR HOST               unplug its cable: the other host hears nothing more
#   scripts/two_hosts.sh join DIR HOST              plug it in again
#   scripts/two_hosts.sh stop DIR                   switch both off, as a power cut does
#
# Needs root and Debian's packages iproute2, openssh-server and openssh-client. A host is a set of Linux namespaces
# (network, host name, processes, mounts, shared memory) whose first process is its sshd; both see this machine's files.
# Its own are DIR/local, /run and /dev/shm, which the other does not see. Keys and configuration lie in DIR and are put
# over /etc/ssh inside the hosts alone: the machine's own, and anybody's ~/.ssh, are neither read for keys nor changed.
set -euo pipefail

usage() { sed -n '2,8p' "$0" >&2; exit 2; }
fail() { echo "two_hosts: $*" >&2; exit 1; }

[ $# -ge 2 ] || usage
verb=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
shift 2

running() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

pid_of() {
    running "$dir/$1.pid" || fail "$1 does not run. Start both:  $0 start $dir"
    cat "$dir/$1.pid"
}

inside() {  # HOST COMMAND...; in the caller's folder, with the caller's environment
    local pid
    pid=$(pid_of "$1")
    shift
    exec nsenter --target "$pid" --mount --uts --ipc --net --pid --wd="$PWD" -- "$@"
}

wait_for() {  # what, command...
    local what=$1
    shift
    for _ in $(seq 100); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done
    fail "$what did not come up; logs are in $dir"
}

write_configuration() {
    mkdir -p "$dir/ssh" "$dir/local"
    chmod 700 "$dir/ssh"
    [ -s "$dir/ssh/key" ] || ssh-keygen -q -t ed25519 -N '' -C two_hosts -f "$dir/ssh/key"
    cp "$dir/ssh/key.pub" "$dir/ssh/authorized_keys"
    printf '127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n' >"$dir/hosts"
    : >"$dir/ssh/known_hosts"
    for host in node1 node2; do
        [ -s "$dir/ssh/$host" ] || ssh-keygen -q -t ed25519 -N '' -C "$host" -f "$dir/ssh/$host"
        echo "$host $(cut -d' ' -f1,2 "$dir/ssh/$host.pub")" >>"$dir/ssh/known_hosts"
    done
    cat >"$dir/ssh/sshd_config" <<CONF
AuthorizedKeysFile $dir/ssh/authorized_keys
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
MaxStartups 100
CONF
    cat >"$dir/ssh/ssh_config" <<CONF
Host *
    IdentityFile $dir/ssh/key
    IdentitiesOnly yes
    UserKnownHostsFile $dir/ssh/known_hosts
    StrictHostKeyChecking yes
    LogLevel ERROR
CONF
}

be_host() {  # the first process of a host; ends as its sshd
    local pid
    read -r pid _ </proc/self/stat  # this /proc is still the machine's: the number by which the machine knows us
    hostname "$1"
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    [ ! -d /dev/shm ] || mount -t tmpfs tmpfs /dev/shm
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs "$dir/local"
    mount --bind "$dir/hosts" /etc/hosts
    mount --bind "$dir/ssh" /etc/ssh
    mkdir /run/sshd
    ip link set lo up
    echo "$pid" >"$dir/$1.pid"
    exec /usr/sbin/sshd -D -f /etc/ssh/sshd_config -h "/etc/ssh/$1" -E "$dir/$1.log"
}

be_switch() {
    ip link add cable type bridge
    ip link set cable up
    echo $$ >"$dir/switch.pid"
    exec sleep infinity
}

start() {
    [ "$(id -u)" -eq 0 ] || fail "needs root, to make network namespaces"
    local missing=() number host
    for program in ip unshare nsenter ssh ssh-keygen /usr/sbin/sshd; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    [ ${#missing[@]} -eq 0 ] || fail "needs ${missing[*]} (Debian: iproute2 util-linux openssh-server openssh-client)"
    for host in node1 node2 switch; do running "$dir/$host.pid" && fail "$host runs already in $dir"; done
    rm -f "$dir"/*.pid
    write_configuration
    setsid unshare --net -- "$0" be-switch "$dir" >"$dir/switch.log" 2>&1 </dev/null &
    for host in node1 node2; do
        setsid unshare --net --uts --ipc --mount --pid --fork -- "$0" be-host "$dir" "$host" \
            >"$dir/$host.log" 2>&1 </dev/null &
    done
    for host in switch node1 node2; do wait_for "$host" test -s "$dir/$host.pid"; done
    number=0
    for host in node1 node2; do
        number=$((number + 1))
        nsenter --target "$(pid_of switch)" --net ip link add "$host" type veth peer name eth0 netns "$(pid_of $host)"
        nsenter --target "$(pid_of switch)" --net ip link set "$host" master cable up
        nsenter --target "$(pid_of $host)" --net ip address add "10.77.0.$number/24" dev eth0
        nsenter --target "$(pid_of $host)" --net ip link set eth0 up
    done
    for host in node1 node2; do
        for other in node1 node2; do
            wait_for "ssh from $host to $other" "$0" on "$dir" "$host" ssh -o BatchMode=yes "$other" true
        done
    done
}

cable() {  # up|down HOST; at the switch's end, so that the host's own interface keeps its address
    case ${2:-} in node1 | node2) ;; *) usage ;; esac
    nsenter --target "$(pid_of switch)" --net ip link set "$2" "$1"
}

case $verb in
    start) start ;;
    stop)
        for name in node1 node2 switch; do
            ! running "$dir/$name.pid" || kill -9 "$(cat "$dir/$name.pid")"
            rm -f "$dir/$name.pid"
        done
        ;;
    on) [ $# -ge 2 ] || usage; inside "$@" ;;
    cut) cable down "$@" ;;
    join) cable up "$@" ;;
    be-host) be_host "$@" ;;
    be-switch) be_switch ;;
    *) usage ;;
esac
