"""A trained run as a service: a page for people, and JSON beside it for programs (docs/how-to/serve.md).

Here: requests and their limits, gathering photos into batches, the page. The answers are those of `inference`.
"""
