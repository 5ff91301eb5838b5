"""How a step is made and repeated.

Here: a request becomes a job (setup.py), the loop (loop.py), one step (step.py), evaluation, State, the run's folder. Not here:
losses (models/), update rules (optim/), what is scored (tasks/).
"""
