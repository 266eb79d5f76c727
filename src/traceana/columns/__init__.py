"""Algebra of whole columns: intervals, nesting, distinct values, threads. It knows no format."""
