"""Formulas of extents alone: they know of no framework, operator or trace."""
