"""A distributed job: a summary of each rank, made by a task of its own, and the job's tables."""
