"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A deadline measures the machine: two cores that others use as well fail it at random.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
