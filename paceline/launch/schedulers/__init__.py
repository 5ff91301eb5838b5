"""Where the nodes of a job come from: Slurm, a list of hosts reached over ssh, or this machine."""
