"""Drawings of predictions and annotations: boxes, masks, labels on a photo, and pictures inside a page."""
