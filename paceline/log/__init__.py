"""What a run tells: events.jsonl, and the sinks that follow it (console, MLPerf's log, TensorBoard, W&B, MLflow, one of yours).

Here: the schema of events (events.py), one Recorder, a file a sink; a tracker needs a file and a line (docs/extending/tracker.md).
Not here: pages and pictures (pages/), what a run's state is (checkpoint/).
"""
