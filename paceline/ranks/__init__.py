"""The processes of one job: which launcher started them, how they meet, agree, fail and stop together.

Here: meeting, messages (signed), agreement, votes, the watch. Not here: starting ranks (launch/), sums inside a step
(training/).
"""
