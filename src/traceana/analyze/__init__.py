"""Analyses: pure functions from a Trace to polars frames. They neither print nor read files.

Every analysis returns a :class:`~traceana.result.Result`: the frame, its totals
and notes on its validity. Durations are int64 nanoseconds in columns that end in
``_ns``; ``share`` is a fraction of 1.
"""
