"""The look at all nodes of a job before its training starts."""
