"""What the recording process asks of the recorded one."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "TRACEANA_RECORD"


@dataclass(frozen=True)
class Settings:
    """``folder`` is where files go. ``profiler`` is ``auto``, ``torch``, ``tensorflow``, ``jax``,
    ``nsys`` or ``none``. After ``warm_up`` steps ``steps`` are recorded; with ``stop`` the script
    ends then. Without ``mark`` the script records itself: only what it is run on is reported.
    """

    folder: str
    profiler: str = "none"
    warm_up: int = 5
    steps: int = 10
    stop: bool = False
    mark: bool = True

    def environment(self) -> dict[str, str]:
        """The environment variable that carries the settings."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls) -> Settings | None:
        """The settings of this process, None where it is not recorded."""
        try:
            return cls(**json.loads(os.environ[VARIABLE]))
        except (KeyError, TypeError, ValueError):
            return None
