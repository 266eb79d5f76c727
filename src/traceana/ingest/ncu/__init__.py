"""Nsight Compute: ``ncu --csv --page raw`` and ``--page details``."""
