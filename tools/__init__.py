"""Developers' tools; nothing of the package needs them."""
