"""Logs of a run: events.jsonl, and the sinks that follow it (console, MLPerf's log, TensorBoard, W&B, MLflow, one of yours).

Here: the schema of events (events.py), the Recorder, the sinks; a tracker needs a class (docs/how-to/extend/logger.md).
Not here: the report (tools/report), checkpoints (training/checkpoint/).
"""
