"""JSON output: one object a document; its keys are documented in docs/json.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from traceana import __version__
from traceana.report.document import JSON_SCHEMA_VERSION, Document
from traceana.report.findings import arranged, table
from traceana.report.kinds import unit_of
from traceana.settings import SETTINGS

if TYPE_CHECKING:
    from traceana.advise import Finding
    from traceana.result import Result


def render(document: Document) -> str:
    """Return ``document`` as a JSON object, pretty-printed and in ASCII, so that no name in it can
    steer the terminal it is shown on."""
    return json.dumps(_object(document), indent=2, allow_nan=False) + "\n"


def _object(document: Document) -> dict[str, Any]:
    if document.facts is not None:
        return {"schema_version": JSON_SCHEMA_VERSION, **document.facts}
    whole: dict[str, Any] = {"meta": _meta(document), "rows": document.table.frame.to_dicts()}
    sections = _sections(document)
    if sections:
        whole["sections"] = {name: result.frame.to_dicts() for name, result in sections.items()}
    if document.overview is not None:
        whole["sections"]["findings"] = _findings(document.overview.top_findings)
    if document.advice is not None:
        whole["rows"] = _findings(arranged(document.advice, document.table).findings)
    return whole


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the rows of findings, each with its figures and its evidence."""
    rows: list[dict[str, Any]] = table(findings).to_dicts()
    for row, finding in zip(rows, findings, strict=True):
        row["figures"] = dict(finding.figures)
        row["evidence"] = finding.evidence.to_dicts()
    return rows


def _sections(document: Document) -> Mapping[str, Result]:
    return document.sections if document.overview is None else document.overview.sections


def _meta(document: Document) -> dict[str, Any]:
    rows = document.table
    frames = [rows.frame, *(result.frame for result in _sections(document).values())]
    if document.advice is not None:
        frames += [finding.evidence for finding in document.advice.findings]
    if document.overview is not None:
        frames += [finding.evidence for finding in document.overview.top_findings]
    return {
        "schema_version": JSON_SCHEMA_VERSION,
        "traceana": __version__,
        "verb": document.verb,
        **document.source,
        "settings": {name: setting.value for name, setting in SETTINGS.items()},
        "units": _units(frames),
        "totals": dict(rows.totals),
        "total_ns": rows.totals.get("time_ns"),
        "rows_total": rows.frame.height + rows.hidden,
        "notes": list(rows.notes),
    }


def _units(frames: list[pl.DataFrame]) -> dict[str, str]:
    columns = dict.fromkeys(column for frame in frames for column in frame.columns)
    units = {column: unit_of(column) for column in columns}
    return {column: unit for column, unit in units.items() if unit is not None}
