"""Neural networks that are trained for a few steps so that a profiler has something to record.

Neither ``traceana`` nor the workloads import the other: a machine with Python, NumPy and the
framework can record.
"""
