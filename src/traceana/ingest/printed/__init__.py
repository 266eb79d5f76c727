"""What profilers print: timelines, summaries and counters, as text, CSV and in other tables."""
