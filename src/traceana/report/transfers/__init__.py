"""The columns of `transfers` and the sentence under its table."""
