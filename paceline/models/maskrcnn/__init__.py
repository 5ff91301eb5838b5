"""Mask R-CNN, and without masks Faster R-CNN: network, heads, proposals, losses, transforms, task, workload."""
