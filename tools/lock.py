"""Prints the installed versions as constraints for pip.

    python -m tools.lock > constraints.txt

A local build (``2.13.0+cpu``) is listed with its public version, so that another machine can
install it from its own index.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions

_OWN = ("pip", "setuptools", "wheel", "traceana")


def constraints() -> list[str]:
    """Return ``name==version`` of each installed distribution, sorted, without traceana and pip."""
    found = {
        re.sub(r"[-_.]+", "-", distribution.name).lower(): distribution.version.split("+")[0]
        for distribution in distributions()
    }
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name not in _OWN]


if __name__ == "__main__":
    print("# Written by `make lock`: the versions of the test environment, on Python 3.11.")
    print("\n".join(constraints()))
