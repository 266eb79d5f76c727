"""The tables of studies on the screen."""
