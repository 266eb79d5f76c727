"""Readers of TensorFlow's operators: which input is which extent."""
