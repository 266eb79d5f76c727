"""All rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceana.advise.rules import (
    algorithm_search,
    allocation,
    batchable_gemms,
    costly_transforms,
    data_loading,
    exposed_communication,
    exposed_copies,
    fast_convolution,
    first_data_gradient,
    first_step_counted,
    host_bound,
    host_synchronization,
    launch_bound,
    layout_changes,
    memory_bound_at_peak,
    pageable_copies,
    profiler_overhead,
    slow_bias_activation,
    slow_copies,
    small_batch,
    small_copies,
    synchronous_copies,
    tensor_cores_unused,
    unfused_attention,
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
        unfused_attention,
        batchable_gemms,
        tensor_cores_unused,
        small_batch,
        algorithm_search,
        small_copies,
        pageable_copies,
        synchronous_copies,
        slow_copies,
        exposed_copies,
        data_loading,
        host_bound,
        launch_bound,
        host_synchronization,
        allocation,
        exposed_communication,
        profiler_overhead,
        first_step_counted,
        memory_bound_at_peak,
    )
)
