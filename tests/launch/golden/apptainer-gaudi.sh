#!/usr/bin/env bash
# Runs a command inside the image /images/paceline-0.1.0.sif with apptainer:  container.sh COMMAND...  (docs/how-to/cluster/containers.md)
set -euo pipefail
mkdir -p /home/ann/.cache/paceline  # paceline's cache
mkdir -p /runs/ssd  # the run's folder
# What `paceline doctor` inside compares with the container: driver, MPI, PMIx, user, limits.
PACELINE_HOST=$(python3 /runs/ssd/launch/host_facts.py 2>/dev/null || true)
export PACELINE_HOST
flags=(
    # Gaudi's devices need no flag: /dev is the host's. Its libraries must be in the image
    --bind /data/coco:/data/coco:ro  # named by /data/coco
    --bind /home/ann/.cache/paceline:/home/ann/.cache/paceline:rw  # paceline's cache
    --bind /runs/ssd:/runs/ssd:rw  # the run's folder
    --pwd /  # no path of the command is relative
)
engine=$(command -v apptainer || command -v singularity) || {
    echo "paceline: $(hostname) has neither apptainer nor singularity. Install one, or use --container-runtime docker." >&2
    exit 2
}
# The host's environment comes inside; these would have the image's Python look for packages on the host.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH
export PYTHONNOUSERSITE=1
# Where the image has a value of its own it would win, but for this prefix.
case $engine in *apptainer) prefix=APPTAINERENV ;; *) prefix=SINGULARITYENV ;; esac
for name in OMP_NUM_THREADS PACELINE_EXIT_CODE_FILE PYTHONUNBUFFERED PACELINE_HOST; do
    if [ -n "${!name+set}" ]; then export "${prefix}_$name=${!name}"; fi
done
# Inside, before the command; the shell there fills it in.
# shellcheck disable=SC2016
guard='python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 has no paceline in it. Build one: paceline container build; or name another with --container-image." >&2
[ -z "${PACELINE_EXIT_CODE_FILE:-}" ] || echo 2 >"$PACELINE_EXIT_CODE_FILE"
exit 2'
exec "$engine" exec "${flags[@]}" /images/paceline-0.1.0.sif sh -c "$guard" /images/paceline-0.1.0.sif "$@"
