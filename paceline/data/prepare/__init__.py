"""Preparation of a data set, once before training: every photo is verified, and a manifest and an index are written."""
