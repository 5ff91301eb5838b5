"""From the order of samples to batches in memory: sampler, random numbers of a sample, worker processes, slots, device buffers."""
