"""All rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceana.advise.rules import (
    algorithm_search,
    batchable_gemms,
    costly_transforms,
    fast_convolution,
    first_data_gradient,
    first_step_counted,
    layout_changes,
    memory_bound_at_peak,
    pageable_copies,
    slow_bias_activation,
    slow_copies,
    small_batch,
    small_copies,
    tensor_cores_unused,
    unfused_bias_activation,
)

if TYPE_CHECKING:
    from traceana.advise.model import Rule

RULES: Final[tuple[Rule, ...]] = tuple(
    module.RULE
    for module in (
        fast_convolution,
        costly_transforms,
        layout_changes,
        first_data_gradient,
        unfused_bias_activation,
        slow_bias_activation,
        batchable_gemms,
        tensor_cores_unused,
        small_batch,
        algorithm_search,
        small_copies,
        pageable_copies,
        slow_copies,
        first_step_counted,
        memory_bound_at_peak,
    )
)
