/runs/ssd/launch/container.sh mpirun --allow-run-as-root \
    --host localhost:8 -np 8 --map-by ppr:8:node --bind-to none \
    --tag-output -x OMP_NUM_THREADS -x PACELINE_EXIT_CODE_FILE -x PYTHONUNBUFFERED \
    -x TERM python3 -m paceline train ssd --data /data/coco \
    --output-dir /runs/ssd
