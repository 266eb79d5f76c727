"""What if: the time of a step after a change, by replaying the trace with it."""
