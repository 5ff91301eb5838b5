"""A run's folder, and what can be read of it.

Here: making or refusing the folder (run_folder), whether a run that ended goes on (going_on), where one starts (start), what it
keeps of its run.json (saved_run), what its evaluations found (standing), a trained run opened for use (trained). going_on,
standing and saved_run load no torch: they refuse a command before anything is set up.
Not here: the formats of what lies in it (checkpoint/, log/), and anything that trains.
"""
