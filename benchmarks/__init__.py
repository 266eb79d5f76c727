"""Speed and memory compared with other libraries in the same run: ``python -m benchmarks``."""
