"""Waits of streams and of the host: what was told to wait, and the work that it waited for."""
