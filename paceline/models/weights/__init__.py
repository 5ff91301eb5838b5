"""Weights of anybody: downloaded, recognized, read, fitted to a network by name, and written for others.

formats/ has one file for each publisher. Checkpoints of runs are in training/checkpoint.
"""
