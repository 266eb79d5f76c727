"""Which element of one sequence is which of another."""
