#!/usr/bin/env bash
# Sets up everything the tests need and runs all of them: lint, types, the site, tests. Called by README and CI alike.
#
#   scripts/test.sh                            on the newest of every package, in .venv
#   scripts/test.sh tests/input -k crop        a part: these tests alone, without lint and types, in what is installed
#   scripts/test.sh --nightly                  the tests that are longer by night, and then --oldest
#   scripts/test.sh --nightly 3/7              part 3 of 7 of this; the last part is --oldest
#   scripts/test.sh --oldest [PYTEST WORDS]    on Python 3.10 and the lowest versions that pyproject.toml allows, in .venv-oldest
#
# As root on Debian it also installs the programs that some tests start (Open MPI, Slurm, Chromium); elsewhere those tests
# skip with a reason, and with CI=true they fail.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "$*" in "" | --nightly* | --oldest*) part=false ;; *) part=true ;; esac

if ! $part && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    missing=()
    # An sshd would be started wherever services are: in CI alone.
    for pair in ${CI:+sshd:openssh-server} ip:iproute2 ssh:openssh-client mpirun:openmpi-bin srun:slurm-client slurmctld:slurmctld slurmd:slurmd munged:munge chromium:chromium zip:zip; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "installing ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
fi

# Many tests start processes that import torch. Without its bytecode each of them would compile it again.
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="$PWD/.venv/bytecode"
fi

install() {
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -m pip install -q uv
    .venv/bin/uv pip install -q -p .venv -e ".[dev,docs,mlperf,fast,tensorboard${1:-}]"
    touch .venv/installed
}
if $part; then
    [ .venv/installed -nt pyproject.toml ] || install
    # Three processes take longer to start than one test file takes to run.
    case "$1" in *.py*) processes=0 ;; *) processes=3 ;; esac
    exec .venv/bin/python -m pytest -n "$processes" --dist loadgroup "$@"
fi
case "$*" in --nightly*) install ,wandb,mlflow ;; *) install ;; esac

# tests ENVIRONMENT [PYTEST WORDS]: three processes on two cores, because many tests wait for processes of their own.
tests() {
    local environment=$1
    shift
    "$environment/bin/python" -m pytest -n 3 --dist loadgroup --durations=20 "$@"
}

# twice ENVIRONMENT [PYTEST WORDS]: a test that fails is repeated once, by itself and with the same drawn numbers. Both outcomes are
# printed; what fails twice has failed. A run that ended in another way (exit code 1 means failed tests) is not repeated: tests of
# it may not have run.
twice() {
    local environment=$1 cache=build/failed-tests code=0
    shift
    rm -rf "$cache"
    tests "$environment" -o cache_dir="$cache" "$@" || code=$?
    if [ "$code" != 1 ]; then return "$code"; fi
    echo "Repeating the failed tests one by one:"
    # Of any shard: shards of the few failed tests would be other ones.
    "$environment/bin/python" -m pytest -o cache_dir="$cache" --last-failed --last-failed-no-failures none -v "$@" --shard 1/1
}

if [ "${1:-}" = --nightly ]; then
    export PACELINE_SEED=${PACELINE_SEED:-$RANDOM}
    shift
    case "${1:-}" in
    [0-9]*/[0-9]*)
        number=${1%/*} count=${1#*/}
        if [ "$count" -lt 2 ] || [ "$number" -lt 1 ] || [ "$number" -gt "$count" ]; then
            echo "--nightly $1: must be K/N, with N from 2 and K from 1 to N. All parts: --nightly" >&2
            exit 2
        fi
        if [ "$number" = "$count" ]; then exec scripts/test.sh --oldest; fi
        twice .venv --nightly --shard "$number/$((count - 1))"
        ;;
    "") twice .venv --nightly && exec scripts/test.sh --oldest ;;
    *) twice .venv --nightly "$@" ;;
    esac
    exit
fi
if [ "${1:-}" = --oldest ]; then
    shift
    # pyenv's programs of other versions are none on PATH; else uv finds a Python 3.10, or fetches one.
    oldest=(~/.pyenv/versions/3.10.*/bin/python)
    [ -x "${oldest[0]}" ] || oldest=(3.10)
    [ -x .venv-oldest/bin/python ] || .venv/bin/uv venv -q -p "${oldest[0]}" .venv-oldest
    # The lowest of what we name, the newest of what these bring: of the lowest of all, many no longer build. torch 2.9 comes with
    # CUDA 12. Matplotlib 3.8's use of pyparsing is deprecated by its 3.3, and here a warning is an error.
    .venv/bin/uv pip install -q -p .venv-oldest --resolution lowest-direct -c <(echo 'pyparsing<3.3') -e '.[dev,mlperf,fast,tensorboard]'
    twice .venv-oldest "$@"
    exit
fi

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/python scripts/style.py --commits

# The types are checked beside the tests, which wait for processes now and then; and before these, beside a first look at
# all of them: three processes that compile everything at once would each do the whole work.
types=$(mktemp)
.venv/bin/basedpyright --pythonpath .venv/bin/python >"$types" 2>&1 &
checking=$!
# So is the site built, of which a dead link is a warning, and a warning an error.
.venv/bin/python -m sphinx -EWnq -c docs . build/site >"$types.site" 2>&1 &
building=$!
trap 'kill "$checking" "$building" 2>/dev/null || true; rm -f "$types" "$types.site"' EXIT

passed=true
.venv/bin/python -m pytest --collect-only -q "$@" >/dev/null || true  # what is wrong there is said below
tests .venv "$@" || passed=false
wait "$checking" || passed=false
wait "$building" || passed=false
cat "$types" "$types.site"
$passed
