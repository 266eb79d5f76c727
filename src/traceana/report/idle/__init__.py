"""The columns of `idle` and the sentences under its table."""
