"""Workloads bound to a recipe and a data set: how a photo becomes a sample, which network, how an evaluation is scored.

Here: what knows both data and model; workloads/ (the menu), metrics/ (the numbers). Not here: decoding (data/transforms), networks
(models/), the loop (training/).
"""
