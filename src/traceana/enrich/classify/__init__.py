"""Classification of kernels by name.

Rules are data (``rules/*.toml``, one file per family of libraries), and the engine is independent
of the libraries. See ``docs/classification.md``.
"""

from traceana.enrich.classify.engine import Explanation, classify_names, explain, keep_classes
from traceana.enrich.classify.ruleset import RuleSet, load_rules, rules_in_use

__all__ = [
    "Explanation",
    "RuleSet",
    "classify_names",
    "explain",
    "keep_classes",
    "load_rules",
    "rules_in_use",
]
