"""Classification of photos by any backbone: loss, mixup, task, workload."""
