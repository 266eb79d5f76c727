"""Comparison of runs: the diff of two with its statistics, and tables of many side by side."""
