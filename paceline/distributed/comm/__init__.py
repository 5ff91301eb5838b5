"""The ranks of one job: which launcher started them, how they meet, compare settings, exchange values, fail and stop together."""
