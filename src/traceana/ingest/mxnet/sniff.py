"""Whether a Chrome trace is MXNet's, told from its first bytes."""

from __future__ import annotations

import re
from typing import Final

# It names its devices first of all, as processes; nobody else has these two.
_DEVICES: Final = re.compile(rb'"name"\s*:\s*"cpu (?:pinned|shared)/"')


def is_mxnet(head: bytes) -> bool:
    """Tell MXNet's ``profile.json``."""
    return _DEVICES.search(head) is not None
