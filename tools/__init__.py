"""Developers' tools, which the package does not need."""
