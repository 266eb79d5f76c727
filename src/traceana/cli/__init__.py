"""The command line: one command per file, shared options, no analysis.

Modules that are imported here or at the top of a command must not import polars or rich, because
that would slow down ``traceana --help``.
"""
