"""The workloads in JAX."""
