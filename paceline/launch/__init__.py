"""Starting a job's ranks: who gives the machines, who starts processes on them, and what each of them runs inside.

Three independent axes, a table each (runner.py imports them): SCHEDULERS (local, hostfile, slurm), STARTERS (torchrun, srun, mpirun)
and CONTAINERS (none, docker, pyxis, apptainer). A LaunchJob (job.py) has the request; the entries turn it into readable files.
Nothing here imports torch: a job is put together on a login node, and refused there.
"""
