"""A trained run as a service: a page for people, and JSON beside it for programs (docs/serve.md).

What belongs here: requests and their limits, gathering photos into batches, the page. Answers are those of predict/.
"""
