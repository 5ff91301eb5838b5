"""What became of the four systems' command lines: typed tables, from which `paceline from` translates and docs/migration is written.

What belongs here: facts about the originals (flags, variables, configuration files, defaults, formulas) and the way from them to ours.
What does not: carrying anything out, asking the machine, torch.

A system's table is written so (mxnet_ssd.py is the pattern):
1. FLAGS, one line a flag: `direct(names, kind, default, "--our.flag {}")` where a value goes straight over (it is written only where it
   differs from the original's default), `settled(names, kind, default, "fields of our recipe", "example")` where `recipe` below reads
   it, `gone(names, kind, default, "dead: why")` where nothing carries over (fixed, automatic, dead, none).
2. VARIABLES likewise, with kind str; CONFIGS: file name -> its assignments as shell text; SCRIPTS: how a script calls the program.
3. `facts(call) -> Facts`: batch, steps, rates, decay, weights, target by the original's own formulas, from `call["--flag"]`.
4. `recipe(call) -> Recipe`: the same as a recipe of ours, through the family's constructor; `system(call)`: fields of System.
5. A Program of these, an Original around its programs, a line in originals.py's ORIGINALS. `differs`, `explains` and an Entry's `row` name
   rows of docs/deviations.md; a number that differs and is not explained is an error that tests find.
6. PAGE beside it: sections of tables; a line whose `run` is an original's command line gets its cell from the translation. Write the
   pages again with scripts/migration_pages.py.
"""
