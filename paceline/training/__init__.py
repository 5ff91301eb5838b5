"""A run from its request to its ending. Start reading at loop.py, then engine/step.py, then setup.py.

Here: what joins the rooms below into a run (call, setup, job), and what is settled, tried or fitted before the first step.
Not here: arithmetic of one step (engine/), of batch, steps and lr (config/plan.py); files that outlive the process (runs/,
checkpoint/, log/); anything that predict, eval or a bench needs without training (runs/trained.py, engine/).
"""
