"""Neural networks that are trained for a few steps so that a profiler has something to record.

Nothing in here is imported by ``traceana`` itself, and nothing in here needs it: a machine with
Python, NumPy and the framework can record.
"""
