"""What things are called, as rows: operators, types of layers, devices and their peaks.

The rules of kernels' names stand beside their engine, in :mod:`traceana.enrich.classify`.
"""
