"""MLPerf's logs, read: what the official checkers say of a run's, and one table of anybody's.

Here: calls of mlperf-logging's checkers, and the judgement in words. Not here: writing the log (log/mllog.py).
"""
