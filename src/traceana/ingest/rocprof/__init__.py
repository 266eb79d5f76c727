"""Reads what AMD's rocprof, rocprofv2 and rocprofv3 write into the canonical tables."""
