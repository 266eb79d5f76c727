"""``crc32``, ``decompressobj`` and ``InflateError`` of isal, or of zlib where isal is missing.

isal inflates about three times as fast and reads the same streams; it has no wheels for Windows on
ARM.
"""

from __future__ import annotations

__all__ = ["InflateError", "crc32", "decompressobj"]

try:
    from isal.isal_zlib import IsalError as InflateError
    from isal.isal_zlib import crc32, decompressobj
except ImportError:
    from zlib import crc32, decompressobj  # type: ignore[assignment]
    from zlib import error as InflateError  # type: ignore[assignment]  # noqa: N812
