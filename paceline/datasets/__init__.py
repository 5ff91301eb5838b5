"""Once, before training: every photo of a data set is verified, and its manifest and index are written.

Here: formats/ and containers/ (what people have), the built-in shapes/, pack/ (few large files). Not here: reading it again
(store/, input/), the page about it (tools/report/check).
"""
