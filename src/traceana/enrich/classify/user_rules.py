"""The user's own rules: a file given for one run, and the one in the configuration directory."""

from __future__ import annotations

import os
from pathlib import Path

from traceana.enrich.classify.load import load_rules
from traceana.enrich.classify.rules_model import RuleSet


def configured_rules() -> Path | None:
    """Return the user's rule file, where there is one: ``traceana/rules.toml``.

    It is looked for in ``$XDG_CONFIG_HOME``, or ``~/.config`` where that is unset, empty or, as the
    XDG Base Directory Specification has it, no absolute path.
    """
    told = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(told) if Path(told).is_absolute() else Path("~/.config").expanduser()
    file = folder / "traceana" / "rules.toml"
    return file if file.exists() else None


def rules_in_use(given: Path | None) -> RuleSet:
    """Return the rules of ``given``, then those of the configuration directory, then our own.

    Raises the errors of :func:`~traceana.enrich.classify.load.load_rules`.
    """
    return load_rules(*(file for file in (given, configured_rules()) if file is not None))
