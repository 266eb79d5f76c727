"""What the three studies printed, as data: numbers as printed, with where and on what."""

from __future__ import annotations

from traceana.study.published.load import Exhibit, exhibits, rows

__all__ = ["Exhibit", "exhibits", "rows"]
