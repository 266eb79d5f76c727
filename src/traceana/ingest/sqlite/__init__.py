"""SQLite files that a profiler wrote: opened unchanged, told apart, read in bulk."""
