"""Layers that networks share: BatchNorm over any span of images, its fused kernels, input normalization."""
