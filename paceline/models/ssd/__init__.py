"""SSD: network, loss, decoding, transforms, task, workload."""
