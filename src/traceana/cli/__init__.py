"""The command line: one verb a file, one shared set of options, nothing but wiring.

Nothing imported here or at the top of a verb may import polars or rich: ``traceana --help`` and
shell completion wait for every import.
"""
