"""Where a run computes: this host, the known systems, and what they will take.

Here: device, threads, cores, memory, adapters; known.py (the systems by name) with what was published there; estimates;
doctor/. Not here: other ranks (ranks/), starting them (launch/).
"""
