"""Summaries that profilers printed: names, calls and times, without a timeline."""
