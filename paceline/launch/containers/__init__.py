"""What the ranks of a job run inside: container engines, their flags and mounts, and the image."""
