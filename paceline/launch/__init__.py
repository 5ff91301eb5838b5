"""Starting a job's ranks: who gives the machines, who starts processes on them, and what each of them runs inside.

Three independent axes, a table each (combine.py): THROUGH (local, hostfile, slurm), START (torchrun, srun, mpirun) and
CONTAINER (none, docker, pyxis, apptainer). A Job (job.py) says what is wanted; the entries turn it into readable files.
Nothing here imports torch: a job is put together on a login node, and refused there.
"""
