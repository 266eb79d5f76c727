"""The pages of the commands: each runs its analysis and lays out the result."""
