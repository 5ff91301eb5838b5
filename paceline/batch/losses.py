"""What a forward gives back for the step: losses by name, and what divides them.

Three forms, none of which divides by the number of images. Losses are float32 on the device, counts of any number type:
- "loss", which is trained, and its parts by name, which are logged: scalars, summed over the batch's images;
- the same, undivided, and under DIVIDE_BY the count that divides them over the global batch, once the step knows it of all ranks;
- of a recipe with `model.loss_group`: sums and counts of each term and group (paceline/training/loss_groups.py).
"""

from __future__ import annotations

DIVIDE_BY = "divide by"  # with a blank: no part of a loss has this name
