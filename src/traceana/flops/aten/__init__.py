"""Readers of PyTorch's operators: which input is which extent."""
