"""The order of commits, as git has it in the repository around the current folder."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from traceana.errors import UsageError

_COMMIT: Final = re.compile(r"(?:.*-g)?([0-9a-f]{7,64})(?:-dirty)?")
"""A commit, or a description of one by git describe."""
_TIMEOUT_S: Final = 60


def hash_in(commit: str | None) -> str | None:
    """Return the hash in the description of a commit; None without one."""
    described = _COMMIT.fullmatch(commit or "")
    return described[1] if described else None


def commit_places(commits: Sequence[str | None]) -> list[int]:
    """Return the place of each of ``commits``, parents before children.

    Raises :class:`~traceana.errors.UsageError` without git or a repository, and for a run without a
    commit or with one that the repository lacks.
    """
    hashes = [hash_in(commit) for commit in commits]
    if None in hashes:
        raise UsageError(
            f"run {hashes.index(None) + 1} has no commit: --order date, or record it in its "
            "repository"
        )
    wanted = sorted({commit for commit in hashes if commit is not None})
    listed = _git(
        ["rev-list", "--topo-order", "--reverse", "--ignore-missing", "--stdin"],
        "".join(f"{commit}\n" for commit in wanted),
    ).split()
    place = {commit: number for number, commit in enumerate(listed)}
    ordered = sorted(listed)
    places: list[int] = []
    for commit in hashes:
        full = _beginning(commit or "", ordered)
        if full is None:
            raise UsageError(
                f"commit {commit} is not in this repository: fetch it, or --order date"
            )
        places.append(place[full])
    return places


def ancestors(name: str) -> list[str] | None:
    """Return the sorted commits of a branch, tag or commit; None if git has none of that name."""
    try:
        commit = _git(
            ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
        )
        return sorted(_git(["rev-list", commit.strip()]).split())
    except UsageError:
        return None


def is_among(commit: str | None, commits: Sequence[str]) -> bool:
    """Return whether the sorted ``commits`` have ``commit``, which may be abbreviated."""
    text = hash_in(commit)
    return text is not None and _beginning(text, commits) is not None


def _beginning(text: str, ordered: Sequence[str]) -> str | None:
    """Return the first of ``ordered`` texts that begins with ``text``."""
    at = bisect_left(ordered, text)
    return ordered[at] if at < len(ordered) and ordered[at].startswith(text) else None


def _git(words: list[str], given: str = "") -> str:
    """Return what git prints; raises ``UsageError`` if it fails."""
    try:
        return subprocess.run(
            ["git", *words],
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            "the order of commits needs git and their repository as the current folder: --order "
            "date orders by time"
        ) from error
