"""Mask R-CNN, and without masks Faster R-CNN: network, proposals, losses, transforms, task, workload."""
