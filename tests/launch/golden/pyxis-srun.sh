# --container-image: a registry's image (HOST#NAME:TAG), or a .sqsh file that all nodes see
# --container-mounts: each lies inside where it lies outside
#     /data/coco: named by /data/coco
#     /home/ann/.cache/paceline: paceline's cache
#     /runs/ssd: the run's folder
# --container-workdir: no path of the command is relative
# --container-env: their values here win over the image's own
# --no-container-mount-home: no packages of ~/.local come between
srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --export=ALL \
    --label --cpu-bind=none --kill-on-bad-exit=0 \
    --container-image=registry.example.com/team/paceline:0.1.0 \
    --container-mounts=/data/coco:/data/coco:ro,/home/ann/.cache/paceline:/home/ann/.cache/paceline,/runs/ssd:/runs/ssd \
    --container-workdir=/ \
    --container-env=OMP_NUM_THREADS,PACELINE_EXIT_CODE_FILE,PYTHONUNBUFFERED \
    --no-container-mount-home sh -c \
    'python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 has no paceline in it. Build one: paceline container build; or name another with --container-image." >&2
[ -z "${PACELINE_EXIT_CODE_FILE:-}" ] || echo 2 >"$PACELINE_EXIT_CODE_FILE"
exit 2' \
    registry.example.com/team/paceline:0.1.0 python3 -m paceline train ssd \
    --data /data/coco --output-dir /runs/ssd &
