"""What calls of CUDA and HIP do to the host, as patterns of their names."""

from __future__ import annotations

from typing import Final

STREAM: Final = r"StreamSynchronize"
EVENT: Final = r"EventSynchronize"
SYNCHRONIZES: Final = r"Synchronize"
"""Calls that only wait for the device."""
FREES: Final = r"^(?:cuda|hip)(?:Free(?:Host|Array)?|HostFree)$|^cuMemFree(?:Host)?(?:_v2)?$"
WAITS: Final = rf"{SYNCHRONIZES}|{FREES}"
"""Calls that block until device work is done; launches and copies can block too.

``cudaMalloc`` does not block: it returns while earlier work is running."""
ALLOCATES: Final = (
    r"^(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))"
    r"|^cuMem(?:Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
)
"""Calls that allocate or free memory: the host's time in them is not called a wait."""
COPIES: Final = r"^(?:cuda|hip)Memcpy|^cuMemcpy"
