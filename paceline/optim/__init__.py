"""SGD, LARS, AdamW, loss scale, clipping, weight average: update rules on tensors, in place, with no wait for the device.

Here: a class an optimiser, made by make.py; numbers that change from step to step live in step_numbers.py.
Not here: the schedule that says the lr (config/schedule.py), the step that calls them (training/step.py).
"""
