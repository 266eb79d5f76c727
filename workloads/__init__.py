"""Neural networks that are trained for a few steps so that a profiler has something to record.

Nothing in here is imported by ``traceana`` itself, and of it the workloads take only what needs no
package: a machine with Python, NumPy and the framework can record.
"""

import sys
from importlib.util import find_spec

if find_spec("msgspec") is None:
    from workloads import plain_structs

    sys.modules["msgspec"] = plain_structs
