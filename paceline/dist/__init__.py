"""Ranks: which launcher started them, how they meet, agree, fail and stop together.

Here: meeting, messages (signed), agreement, votes, the watch. Not here: starting ranks (launch/), sums inside a step (where needed),
what must be alike (training/alike.py says it, agreement.py compares), gradients (torch's DDP, in engine/).
"""
