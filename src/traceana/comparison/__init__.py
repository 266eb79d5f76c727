"""Comparison of runs: the diff of two with its statistics, and tables of many side by side.

Others begin with ``run_inputs`` (the runs), ``compared_run.Run``, then ``diff.compared`` for two
runs, ``run_tables.Comparison`` for any number, ``jobs`` for two distributed jobs.
"""
