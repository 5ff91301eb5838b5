#!/usr/bin/env bash
# Run a command in the image /images/paceline-0.1.0.sif with apptainer:  container.sh COMMAND...  (docs/how-to/cluster/containers.md)
set -euo pipefail
mkdir -p /home/ann/.cache/paceline  # paceline's cache
mkdir -p /runs/ssd  # the run's folder
# `paceline doctor` in the container compares it with the host: driver, MPI, PMIx, user, and limits.
PACELINE_HOST=$(python3 /runs/ssd/launch/host_facts.py 2>/dev/null || true)
export PACELINE_HOST
flags=(
    --nv  # NVIDIA devices and the driver library of the host
    --bind /data/coco:/data/coco:ro  # named by /data/coco
    --bind /home/ann/.cache/paceline:/home/ann/.cache/paceline:rw  # paceline's cache
    --bind /runs/ssd:/runs/ssd:rw  # the run's folder
    --pwd /  # the command has no relative paths
)
engine=$(command -v apptainer || command -v singularity) || {
    echo "paceline: $(hostname): apptainer or singularity not found. Install one, or use --container-runtime docker." >&2
    exit 2
}
# The container inherits the environment. With these variables, Python would search packages of the host.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH
export PYTHONNOUSERSITE=1
# Without this prefix, values of the image would have priority.
case $engine in *apptainer) prefix=APPTAINERENV ;; *) prefix=SINGULARITYENV ;; esac
for name in OMP_NUM_THREADS PACELINE_EXIT_CODE_FILE PYTHONUNBUFFERED PET_NNODES PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT PACELINE_HOST; do
    if [ -n "${!name+set}" ]; then export "${prefix}_$name=${!name}"; fi
done
# This runs in the container before the command; the shell in the container expands it.
# shellcheck disable=SC2016
guard='python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 does not contain paceline. Run paceline container build, or set another --container-image." >&2
[ -z "${PACELINE_EXIT_CODE_FILE:-}" ] || echo 2 >"$PACELINE_EXIT_CODE_FILE"
exit 2'
exec "$engine" exec "${flags[@]}" /images/paceline-0.1.0.sif sh -c "$guard" /images/paceline-0.1.0.sif "$@"
