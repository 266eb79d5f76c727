"""Runs side by side, on the screen and in Markdown."""
