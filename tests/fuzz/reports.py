"""The table of outcomes, and the failing inputs kept in a folder with the command to see them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.fuzz.answers import written
from tests.fuzz.campaign import KINDS, Campaign, Failure, Tally
from tests.fuzz.shrink import shrunk

_COMMANDS = {"rules": "--rules", "model": "--model", "counters": "--counters", "pairs": "--map"}


def printed(tally: Tally, seed: int) -> str:
    """Return the outcomes by format, as a Markdown table, and what they cost."""
    rows = [["format", "inputs", *KINDS, "exit codes of refusals"]]
    for name, counter in tally.counts.items():
        codes = ", ".join(f"{code}: {n:,}" for code, n in sorted(tally.codes[name].items()))
        rows.append([name, f"{counter.total():,}", *(f"{counter[k]:,}" for k in KINDS), codes])
    sums = [sum(counter[kind] for counter in tally.counts.values()) for kind in KINDS]
    rows.append(["total", f"{tally.inputs:,}", *(f"{n:,}" for n in sums), ""])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| --- |" + " --: |" * (len(KINDS) + 1) + " --- |")
    rate = tally.inputs / tally.cpu_seconds if tally.cpu_seconds else 0
    lines.append("")
    lines.append(
        f"Seed {seed}; {tally.inputs:,} inputs in {tally.wall_seconds:,.0f} s, "
        f"{tally.cpu_seconds:,.0f} s of CPU ({rate:.2f} inputs per CPU second); highest memory "
        f"of a process {tally.peak_bytes / 2**20:,.0f} MiB."
    )
    return "\n".join(lines)


def kept(campaign: Campaign, tally: Tally, folder: Path, seconds: float) -> str:
    """Write one input of each group of failures to ``folder``, shrunk; return the list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{len(tally.failures):,} failures of {len(tally.groups())} kinds, in {folder}", ""]
    for place, (group, failures) in enumerate(tally.groups(), 1):
        smallest = min(failures, key=lambda one: len(one.given.files[one.given.damaged] or b""))
        home = folder / f"{place:03d}-{group[0]}-{smallest.format}-{smallest.number}"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        small = shrunk(campaign, smallest, seconds) if seconds else None
        path = written(small or smallest.given, home)
        by_format: dict[str, int] = {}
        for one in failures:
            by_format[one.format] = by_format.get(one.format, 0) + 1
        lines += _described(campaign.seed, place, failures, smallest, by_format, path)
        (home / "failure.json").write_text(
            json.dumps(
                {
                    "seed": campaign.seed,
                    "format": smallest.format,
                    "number": smallest.number,
                    "what": smallest.given.what,
                    "file": smallest.given.damaged,
                    "outcome": smallest.outcome.as_dict(),
                    "others": [(one.format, one.number, one.given.what) for one in failures[:20]],
                },
                indent=1,
            )
        )
    return "\n".join(lines)


def _described(
    seed: int,
    place: int,
    failures: list[Failure],
    shown: Failure,
    by_format: dict[str, int],
    path: Path,
) -> list[str]:
    outcome = shown.outcome
    role = shown.given.seed.role
    command = outcome.command if outcome.command not in ("", "open", "exit code") else "info"
    use = f"traceana --debug {command} {path}"
    if role in _COMMANDS:
        beside = path.parent / shown.given.seed.beside
        two = f"diff {beside} {beside}" if role == "pairs" else f"{command} {beside}"
        use = f"traceana --debug {two} {_COMMANDS[role]} {path}"
    formats = ", ".join(f"{name} {count}" for name, count in by_format.items())
    mutated = f"{shown.given.seed.name}: {shown.given.damaged}: {shown.given.what}"
    title = f"{outcome.kind}: {outcome.error} in {outcome.frame or '?'}"
    return [
        f"## {place}. {title} ({len(failures)}: {formats})",
        f"    {outcome.command}: {outcome.message[:250]}",
        f"    {mutated[:250]}",
        f"    python -m tests.fuzz --seed {seed} --formats {shown.format} --one {shown.number}",
        f"    {use}",
        "",
    ]
