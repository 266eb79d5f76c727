"""Steps, waits, idle time and the critical path: one idea of time for all commands."""
