"""Neural networks that are trained for a few steps so that a profiler has something to record.

``traceana`` does not import the workloads. They import only modules of ``traceana`` without
dependencies: a machine with Python, NumPy and the framework can record.
"""

import sys
from importlib.util import find_spec

if find_spec("msgspec") is None:
    from workloads import plain_structs

    sys.modules["msgspec"] = plain_structs
    sys.modules["msgspec.structs"] = plain_structs.structs
