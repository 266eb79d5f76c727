"""What moves and computes nothing, or next to nothing."""

from __future__ import annotations

from typing import Final

from traceana.flops.registry import declare

COPY: Final = declare(
    "memory.copy",
    """No operation: elements are read and written, converted between types if need be.""",
)
FILL: Final = declare(
    "memory.fill",
    """No operation: elements are written, of one value or of random ones.""",
)
LOOKUP: Final = declare(
    "memory.lookup",
    """No operation: the elements of the result are read from a table, and the indices.""",
)
SCATTER: Final = declare(
    "memory.scatter_add",
    """1 an element: each of the gradient (or source) is added to the row that its index names.

    Reads the source and the indices, writes the whole of the table's gradient.
    """,
)
