"""Comparison of runs: in groups, and the search for the first step and tensor at which two of them differ."""
