"""The studies' networks in those of the studies' frameworks that still run: docs/studies.md.

The training scripts run under the Python versions that those frameworks need, 3.6 and later, with
NumPy and no other module of this repository. ``workloads.legacy.plan`` writes the file from which
they read the network.
"""
