"""The studies' networks in the studies' frameworks, as far as these still run: docs/legacy.md.

What trains runs under the Pythons that those frameworks need, 3.6 and later, with NumPy and nothing
else of this repository: the network comes to it in a file, which ``workloads.legacy.plan`` writes.
"""
