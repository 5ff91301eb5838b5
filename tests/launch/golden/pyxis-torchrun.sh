# --container-image: image of a registry (HOST#NAME:TAG), or a .sqsh file that all nodes share
# --container-mounts: the paths are the same in the container
#     /data/coco: named by /data/coco
#     /home/ann/.cache/paceline: paceline's cache
#     /runs/ssd: the run's folder
# --container-workdir: the command has no relative paths
# --container-env: these values have priority over values of the image
# --no-container-mount-home: ignores packages in ~/.local
srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --export=ALL \
    --cpu-bind=none --kill-on-bad-exit=0 --label \
    --container-image=registry.example.com/team/paceline:0.1.0 \
    --container-mounts=/data/coco:/data/coco:ro,/home/ann/.cache/paceline:/home/ann/.cache/paceline,/runs/ssd:/runs/ssd \
    --container-workdir=/ \
    --container-env=OMP_NUM_THREADS,PACELINE_EXIT_CODE_FILE,PYTHONUNBUFFERED \
    --no-container-mount-home sh -c 'export PET_NODE_RANK=$SLURM_NODEID; exec "$@"' sh sh \
    -c \
    'python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 does not contain paceline. Run paceline container build, or set another --container-image." >&2
[ -z "${PACELINE_EXIT_CODE_FILE:-}" ] || echo 2 >"$PACELINE_EXIT_CODE_FILE"
exit 2' \
    registry.example.com/team/paceline:0.1.0 python3 -m torch.distributed.run \
    --nproc-per-node 8 -m paceline train ssd --data /data/coco \
    --output-dir /runs/ssd &
