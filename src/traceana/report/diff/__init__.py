"""What `diff` found, on the screen and in Markdown."""
