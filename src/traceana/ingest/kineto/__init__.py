"""torch.profiler's traces."""
