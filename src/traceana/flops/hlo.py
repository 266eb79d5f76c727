"""Floating-point operations of XLA's instructions: convolutions and matrix products.

Other instructions (elementwise, reductions, pooling, sorting, FFT …) are not counted. An
instruction with others inside (fusion, call, while …) has their sum.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import polars as pl

from traceana.flops.call import Contraction, decoded_instruction
from traceana.flops.convolution import (
    as_written,
    hlo_convolution,
    hlo_library_convolution,
    hlo_onednn_convolution,
)
from traceana.flops.cost import LARGEST, Count, UncountableError
from traceana.flops.matmul import hlo_dot, hlo_onednn_matmul
from traceana.flops.registry import declare
from traceana.trace.schema import ROW

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "instruction": ROW,
    "flops": pl.Int64,
    "formula": pl.String,
    "at_least": pl.Boolean,
}
_GRADIENT: Final = re.compile(r"transpose\(|(?:^|/)gradients?(?:_tape)?/")
"""Marks of differentiation in scopes, of JAX and of TensorFlow."""
_CONV: Final = "__cudnn$conv"
_FORMULAS: Final[tuple[tuple[str, str, Callable[[Contraction], Count]], ...]] = (
    ("convolution", "", hlo_convolution),
    ("dot", "", hlo_dot),
    ("custom-call", _CONV, hlo_library_convolution),
    ("custom-call", "__cublas$", hlo_dot),
    ("custom-call", "__onednn$convolution", hlo_onednn_convolution),
    ("custom-call", "__onednn$matmul", hlo_onednn_matmul),
)
"""Opcode, beginning of the target, formula."""

INSIDE: Final = declare(
    "hlo.inside",
    """An instruction with others inside: the sum of their counts.

    The body of a while counts trip-count times, once where the trip count is unknown. The branches
    of a conditional do not count, since the executed branch is unknown. Both are marked
    ``at_least``.
    """,
)
GRADIENT: Final = declare(
    "hlo.convolution.gradient",
    """A gradient of a convolution: the count of the forward convolution.

    The gradients of input and weight multiply each element of the output's gradient with the
    elements it was computed from, so that all three counts are equal. XLA writes a gradient as a
    convolution with other padding, where counting full windows differs: the input gradient of a 5x5
    convolution from 14x14 to 10x10 has 14x14 windows, many of them mostly beyond the 10x10. The
    forward convolution is the one of the same program with the same element counts of its three
    tensors.
    """,
)


def instruction_flops(instructions: pl.DataFrame) -> pl.DataFrame:
    """Return the FLOPs of each instruction, a row per counted instruction.

    ``instructions`` is that table of a trace. Columns: ``instruction``, its row; ``flops`` of one
    execution, a multiply-accumulate as two; ``formula``, a key of
    :data:`traceana.flops.registry.FORMULAS`; ``at_least``, whether some of it could not be
    counted. An instruction inside another has a row, and is also in the other's count.
    """
    counted, partial = _own(instructions)
    parents = instructions["parent"].to_list()
    trips = _trips(instructions)
    branches = set(_rows(instructions, pl.col("opcode") == "conditional"))
    inside: defaultdict[int, int] = defaultdict(int)
    found: list[tuple[int, int, str, bool]] = []
    for row in range(instructions.height - 1, -1, -1):
        if (own := counted.get(row)) is not None:
            flops, formula, at_least = own.flops, own.formula, False
        else:
            repeats = trips.get(row, 1)
            flops, formula = inside[row] * (repeats or 1), INSIDE
            at_least = row in partial or (not repeats and flops > 0)
        parent = parents[row]
        if parent is not None and parent < row:
            kept = flops <= LARGEST and parent not in branches
            inside[parent] += flops if kept else 0
            if at_least or (flops and not kept):
                partial.add(parent)
        if 0 < flops <= LARGEST:
            found.append((row, flops, formula, at_least))
    return pl.DataFrame(found[::-1], schema=_SCHEMA, orient="row")


def _own(instructions: pl.DataFrame) -> tuple[dict[int, Count], set[int]]:
    """Return the counts of instructions with a formula, and rows where it did not apply."""
    opcode = pl.col("opcode").cast(pl.String)
    target = pl.col("target").cast(pl.String).fill_null("")
    columns = ("program", "program_id", "scope", "input_shapes", "output_shape", "output_type")
    counts: dict[int, Count] = {}
    failed: set[int] = set()
    rows: dict[int, tuple[object, str | None]] = {}
    for code, begin, formula in _FORMULAS:
        mine = instructions.with_row_index("row").filter(
            (opcode == code) & target.str.starts_with(begin)
        )
        for row, name, program, number, scope, inputs, output, kind, attributes in mine.select(
            "row", target, *columns, "attributes"
        ).iter_rows():
            try:
                contraction = decoded_instruction(name, inputs, output, kind, attributes)
                if _is_forward(scope):
                    contraction = as_written(contraction)
                counts[row] = formula(contraction)
            except UncountableError:
                failed.add(row)
            else:
                rows[row] = ((program, number), scope)
    return _as_forward(counts, rows), failed


def _is_forward(scope: str | None) -> bool:
    """Return whether the instruction is not a gradient.

    One without a scope counts as forward: XLA's rewriting of a weight gradient loses the scope.
    """
    return scope is not None and _GRADIENT.search(scope) is None


def _as_forward(
    counts: dict[int, Count], rows: Mapping[int, tuple[object, str | None]]
) -> dict[int, Count]:
    """Return ``counts`` with gradients of convolutions counted as their forward convolution.

    A convolution without a scope counts as a gradient.
    """
    forward: defaultdict[tuple[object, tuple[int, ...]], set[int]] = defaultdict(set)
    gradients = []
    for row, count in counts.items():
        program, scope = rows[row]
        if not count.tensors:
            continue
        if _is_forward(scope):
            forward[program, count.tensors].add(count.flops)
        else:
            gradients.append((row, (program, count.tensors)))
    completed = dict(counts)
    for row, key in gradients:
        # Forward convolutions of equal sizes may differ: then the gradient's own count is used.
        if len(known := forward.get(key, ())) == 1:
            completed[row] = Count(next(iter(known)), GRADIENT)
    return completed


def _trips(instructions: pl.DataFrame) -> dict[int, int]:
    """Return the trip count of each while, 0 where unknown."""
    loops = _rows(instructions, pl.col("opcode") == "while")
    known = instructions["attributes"].gather(loops).str.json_path_match("$.trip_count")
    return dict(zip(loops, known.cast(pl.Int64, strict=False).fill_null(0), strict=True))


def _rows(instructions: pl.DataFrame, which: pl.Expr) -> list[int]:
    return instructions.select(which.fill_null(False).arg_true()).to_series().to_list()
