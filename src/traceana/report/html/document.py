"""A page as one HTML file that needs nothing else: styles, scripts and data are inside.

Its Content-Security-Policy allows the scripts by their SHA-256 and nothing from a network, so text
of a trace that became markup could still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Final

from markupsafe import Markup, escape

from traceana import __version__
from traceana.report.html import vega
from traceana.report.html.elements import environment
from traceana.report.html.pictures import PALETTE, picture
from traceana.report.page import Block, Chart, Heading, Illustration, Page, pictures_of
from traceana.report.panels import Panels

_SCRIPTS: Final = ("text.js", "tables.js", "icicle.js", "timeline.js", "charts.js", "page.js")
_STYLE: Final = "page.css"


def render(page: Page, *, packed: bool = False) -> str:
    """Return ``page`` as a document of HTML.

    The library that draws charts is compressed in a ``packed`` one. Raises
    :class:`~traceana.errors.MissingExtraError` without that library, if the page has a chart.
    """
    pictures: list[Mapping[str, Any]] = []

    def number(block: Illustration) -> int:
        pictures.append(picture(block))
        return len(pictures) - 1

    blocks = list(page.blocks)
    heading = _heading(blocks, page)
    charts = any(isinstance(block, Chart | Panels) for block in pictures_of(page))
    library = vega.script() if charts else ""
    scripts = [*map(_asset, _SCRIPTS)]
    # The hash of a packed library is that of the script which the page makes of it.
    policy = _policy([*([library] if charts else []), *scripts])
    if charts and not packed:
        scripts.insert(0, library)
    style = _asset(_STYLE)
    # The body is rendered first, because it numbers the pictures.
    template = environment().get_template("document.html")
    context = {
        "policy": policy,
        "version": __version__,
        "title": f"{heading.text} · traceana {page.command}",
        "palette": json.dumps(PALETTE),
        "style": Markup(style),
        "heading": heading,
        "blocks": blocks,
        "sections": page.sections,
        "anchors": {"summary": "Step time", **{one.name: one.title for one in page.sections}}
        if page.sections
        else {},
        "command": page.command,
        "library": vega.NAME if charts else "",
        "licence": escape(vega.LICENCE) if charts else "",
        "packed": Markup(vega.packed(library)) if charts and packed else "",
        "scripts": [Markup(script) for script in scripts],
        "number": number,
    }
    return template.render(context, pictures=_Later(pictures))


class _Later:
    """The data of the pictures as JSON, complete when the template inserts it at its end."""

    def __init__(self, pictures: list[Mapping[str, Any]]) -> None:
        self._pictures = pictures

    def __html__(self) -> str:
        text = json.dumps(self._pictures, separators=(",", ":"), allow_nan=False)
        # Nothing in a script element may look like its end.
        return text.replace("<", "\\u003c")


def _heading(blocks: list[Block], page: Page) -> Heading:
    """Remove the first heading from ``blocks`` and return it, or that of the command and file."""
    if blocks and isinstance(blocks[0], Heading):
        first = blocks.pop(0)
        assert isinstance(first, Heading)
        return first
    source = page.data.source
    if "a" in source and "b" in source:
        runs = " → ".join(PurePath(source[run]["file"]).name for run in "ab")
        return Heading(runs, f"traceana {page.command}: baseline → candidate")
    return Heading(f"traceana {page.command}", PurePath(source.get("file") or "").name)


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text("utf-8")


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
