"""What a rank finds and sets on its machine: device, threads, cores, network adapter, memory, compiler, versions.

Here: one rank and the machine below it. Not here: which machines there are to choose (systems/), other ranks (dist/), what is
wrong with a machine (doctor/). host_facts.py is a program by itself too: it is copied to hosts that have no paceline.
"""
