"""Layers told by the operators themselves: Kineto's ``Module Hierarchy`` (TorchScript)."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.layers.places import SEPARATOR, Layer, codes
from traceana.enrich.nesting import NONE, Ints, Nesting, inherit

# "TOP(AlexNet)::forward.features(Sequential)::forward.0(Conv2d)::_conv_forward"
_CALL: Final = r"[^.():<>]+\([^()]*\)::"


def hierarchy_layers(ops: pl.DataFrame, nesting: Nesting) -> tuple[Ints, list[Layer]]:
    """Return, for every operator, the module that its Module Hierarchy ends in, NONE without one.

    An operator that has none is where the operator around it is. The outermost call, the model
    itself, is not part of the path.
    """
    code, texts = codes(ops["module"].cast(pl.String).fill_null(""))
    calls = pl.Series(texts, dtype=pl.String).str.extract_all(_CALL)
    layers: dict[Layer, int] = {}
    layer_of_text = np.full(len(texts), NONE, dtype=np.int64)
    for i, found in enumerate(calls.to_list()):
        modules = [call.removesuffix(")::").split("(", 1) for call in found[1:]]
        if modules:
            path = SEPARATOR.join(name for name, _ in modules)
            layer_of_text[i] = layers.setdefault((path, modules[-1][1], "layer"), len(layers))
    own = layer_of_text[code] if len(texts) else code
    return inherit(nesting, own), list(layers)
