"""The published studies from recorded runs: runs and Traces in, frames out."""
