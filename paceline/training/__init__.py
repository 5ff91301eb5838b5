"""Training: a request becomes a run (trainer.py), the loop (loop.py), one step (step.py), evaluation, checkpoints, the run's folder.

Here too: the optimizers (optim/), checkpoints, logs and the run's folder. Not here: losses and metrics.
"""
