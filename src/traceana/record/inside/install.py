"""Which frameworks of the process are watched, and what happens when one is imported."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from .imports import Callback, watch
from .report import Report, guarded
from .settings import Settings

FRAMEWORKS = ("torch", "tensorflow", "jax")


def install(settings: Settings, report: Report) -> None:
    """Watch for the frameworks that ``settings`` want recorded; all of them are reported."""

    def prepare(framework: str) -> Callback:
        def imported(module: ModuleType) -> None:
            report.tell(framework=framework)
            wanted = settings.profiler in ("auto", "nsys", "none", framework)
            if settings.mark and wanted:
                guarded(lambda: _steps_of(framework)(module, settings, report), report)

        return imported

    def keras_imported(module: ModuleType) -> None:
        from .keras_model import TRAINED

        if settings.mark:
            guarded(lambda: TRAINED.watch(module, report), report)

    frameworks = {framework: prepare(framework) for framework in FRAMEWORKS}
    watch({**frameworks, "keras": keras_imported})


def _steps_of(framework: str) -> Callable[[ModuleType, Settings, Report], None]:
    if framework == "torch":
        from . import torch_steps

        return torch_steps.count_steps
    if framework == "tensorflow":
        from . import tensorflow_steps

        return tensorflow_steps.count_steps
    from . import jax_steps

    return jax_steps.count_steps
