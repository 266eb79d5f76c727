"""What the work of a trace computes and must move, by layer: the figures beside its time."""
