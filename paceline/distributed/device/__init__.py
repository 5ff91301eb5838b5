"""The machine of one rank: accelerator, cores, memory, power, versions, and the known systems by name."""
