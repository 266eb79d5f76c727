"""Compares what two decoders make of the same events."""

from __future__ import annotations

from traceana.readers.kineto.decode import FRAMES, Columns


def assert_equal(found: Columns, wanted: Columns) -> None:
    """Assert that the frames, the counts and their order are equal."""
    assert found.events == wanted.events
    assert [*found.left_out.items()] == [*wanted.left_out.items()]
    assert [*found.lost_fields.items()] == [*wanted.lost_fields.items()]
    assert found.repaired == wanted.repaired
    for name in FRAMES:
        frame = wanted.frame(name)
        assert found.frame(name).schema == frame.schema
        assert found.frame(name).equals(frame), name
