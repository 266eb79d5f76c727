"""What things are called, as rows: operators, types of layers, devices and their peaks.

The words of options are in :mod:`traceana.vocabulary.option_words`.

The rules of kernels' names stand beside their engine, in :mod:`traceana.enrich.classify`.
"""
