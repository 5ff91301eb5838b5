"""The folder of a run: made, resumed or refused, and its copy in a bucket."""
