"""One optimiser step, one evaluation, and the state that both use and a checkpoint saves.

Here: what happens between two batches: forward, loss division, backward, exchange, update, capture and replay; inference over the
validation images. No workload is named: models return losses, tasks score. Where a loss is computed: models/; how it is
divided over images, forwards and ranks: loss_groups.py. Not here: when a step or an evaluation is due (config/due.py, training/).
"""
