"""From a kernel's name to what the kernel is.

Rules are data (``rules/*.toml``, one file a library family); the engine that runs them is small and
knows no library. See ``docs/classification.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Imported here and now: were it fetched on demand like the others, the module of the same name
# would take the function's place in this package once anything had imported it.
from traceana.enrich.classify.explain import Explanation, explain

if TYPE_CHECKING:
    from traceana.enrich.classify.engine import classify_names
    from traceana.enrich.classify.load import load_rules
    from traceana.enrich.classify.rules_model import RuleSet
    from traceana.enrich.classify.user_rules import rules_in_use

__all__ = ["Explanation", "RuleSet", "classify_names", "explain", "load_rules", "rules_in_use"]

_HOMES = {
    "classify_names": "engine",
    "load_rules": "load",
    "RuleSet": "rules_model",
    "rules_in_use": "user_rules",
}


def __getattr__(name: str) -> Any:
    # The engine imports polars and numpy, which a command line's --help must not wait for.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"traceana.enrich.classify.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'traceana.enrich.classify' has no attribute {name!r}")
