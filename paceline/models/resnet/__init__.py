"""Classification of photos by any backbone: loss and mixing, task, workload."""
