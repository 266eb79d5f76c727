"""What changed between two runs, and why: the findings of a diff, most effect first."""

from __future__ import annotations

from traceana.compare.changes.table import changes, found_changes, things

__all__ = ["changes", "found_changes", "things"]
