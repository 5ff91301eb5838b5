"""Acceptance of a machine: what it reaches in training's work, and whether that is as fast as it should be."""
