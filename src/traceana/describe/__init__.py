"""The layer manifest: what layers a model has, what each takes, gives and multiplies.

>>> import traceana
>>> manifest = traceana.describe(model, (8, 3, 224, 224))    # doctest: +SKIP
>>> manifest.write("alexnet.layers.json")                    # doctest: +SKIP
>>> traceana.describe.read("alexnet.layers.json")            # doctest: +SKIP
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from traceana.describe.dispatch import describe
from traceana.describe.find import find
from traceana.describe.manifest import Input, Layer, Manifest, read

__all__ = ["Input", "Layer", "Manifest", "describe", "find", "read"]


class _CallableModule(ModuleType):
    """Importing this package makes ``traceana.describe`` a module; it is the function as well."""

    def __call__(self, *arguments: Any, **options: Any) -> Manifest:
        return describe(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
