"""The Nsight Compute reader: ``ncu --csv --page raw`` and ``--page details``."""
