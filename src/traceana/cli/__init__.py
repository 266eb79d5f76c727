"""The command line: one command per file, shared options, no analysis.

Nothing imported here or at the top of a command may import polars or rich, which would slow down
``traceana --help`` and shell completion.
"""
