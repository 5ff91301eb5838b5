"""MLPerf's logs: what the official checkers say of them, and one table of anybody's logs.

Here: calls of mlperf-logging's checkers, readers of others' logs, and `paceline mlperf`. Not here: writing the log
(training/logging/mllog.py).
"""
