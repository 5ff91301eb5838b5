"""The four systems whose command lines `paceline translate` translates, and the pages of docs/reference/generated/migration that are written from their tables.

What belongs here: facts about the originals (flags, variables, configuration files, defaults, formulas) and the way from them to ours.
What does not: running anything, looking at the machine, torch.

A system is a JSON file (its dataclasses: table.py) and a module of that name with what its programs compute:
1. `entries`: tables of flags and variables. `ours` is a template ("--our.flag {}", written only where the value differs from the original's
   default), an example of the `fields` that the program's `recipe` decides, or "dead: why" (or fixed, automatic, none).
2. `originals`: programs, configurations and scripts. A number that differs from ours is explained by a row of docs/reference/known-differences.md
   (`differs`, `explains`, an entry's `row`); tests find one that is not.
3. Formulas: `facts` computes batch, steps, rates, decay, weights and target as the original does, from `call["--flag"]`; `recipe` makes the
   same as a recipe of ours; `system` names fields of System.
4. `lines` and `pages`: a line with `run` gets its cell from the translation. Write the pages again with scripts/migration_pages.py.
Of two systems whose programs know all flags of a line the first one below is taken.
"""

from __future__ import annotations

from paceline.tools.migrate import gaudi_ssd, gluoncv_maskrcnn, mxnet_resnet, mxnet_ssd
from paceline.tools.migrate.table import MigrationPage, ReferenceSystem

_SYSTEMS = (mxnet_ssd.SYSTEM, gaudi_ssd.SYSTEM, mxnet_resnet.SYSTEM, gluoncv_maskrcnn.SYSTEM)
ORIGINALS: tuple[ReferenceSystem, ...] = tuple(original for system in _SYSTEMS for original in system.originals)
PAGES: tuple[MigrationPage, ...] = tuple(page for system in _SYSTEMS for page in system.pages)
