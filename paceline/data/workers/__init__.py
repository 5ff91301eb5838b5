"""Processes that share the work of one process, each with an interpreter lock of its own.

A template process forks them, so that they start in milliseconds and share its memory, torch's code above all. The template has no
threads and never touches an accelerator. It is forked from this process, or started as a new one where torch sees an accelerator: a
process must not be forked after CUDA has started. It ends when this process ends, however that happens, and its workers end with it.

    job      what the workers run; pickled once, into memory that all of them map. Arrays are not copied
    task     a few numbers, which any worker takes from one pipe. What they mean is the job's matter
    result   what the job's function returns for a task, or raises; each worker has a pipe for them

Linux only: files in memory without a name (memfd), which need no /dev/shm, and descriptors that are sent over a socket.
"""
