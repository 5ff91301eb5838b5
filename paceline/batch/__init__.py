"""What travels from data to a network: one dataclass a kind of batch, its shapes and units, and how its tensors lie in memory.

Here belongs what data/ and models/ both must know, and nothing that reads a file or computes a loss.
"""
