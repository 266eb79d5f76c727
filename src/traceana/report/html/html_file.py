"""A page as one HTML file that needs nothing else: styles, scripts and data are inside.

Its Content-Security-Policy allows the scripts by their SHA-256 and nothing from a network, so text
of a trace that became markup could still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

from markupsafe import Markup, escape

from traceana import cache
from traceana.report.charts.pictures import picture
from traceana.report.charts.plot import chart_svg, require_vl_convert
from traceana.report.charts.specification import PAGE, config
from traceana.report.display_names import trace_file
from traceana.report.html.elements import environment
from traceana.report.page import (
    Bars,
    Block,
    Chart,
    Findings,
    Heading,
    Icicle,
    Illustration,
    Page,
    Panels,
    Timeline,
    pictures_of,
)
from traceana.version import __version__

_SCRIPTS: Final = {
    **{"text.js": object, "tables.js": object, "icicle.js": Icicle, "timeline.js": Timeline},
    **{"charts.js": object, "page.js": object},
}
"""The scripts in their order, and the picture that needs each."""
_STYLE: Final = "page.css"


def render(page: Page, *, drawn: bool = False) -> str:
    """Return ``page`` as a document of HTML.

    Its charts are drawn by a library of scripts when it is read, or are already ``drawn`` as SVG.
    Raises :class:`~traceana.errors.MissingDependencyError` without vl-convert, if the page has a
    chart.
    """
    pictures: list[Mapping[str, Any]] = []

    def number(block: Illustration) -> int:
        pictures.append({} if drawn and isinstance(block, Chart) else picture(block))
        return len(pictures) - 1

    def svg(block: Illustration) -> Markup:
        return Markup(chart_svg(block)) if drawn and isinstance(block, Chart) else Markup()

    blocks = list(page.blocks)
    heading = _heading(blocks, page)
    shown = [block for block in pictures_of(page) if not isinstance(block, Bars)]
    charts = not drawn and _has(shown, Chart, Panels)
    library = vega_script() if charts else ""
    needed = [name for name, kind in _SCRIPTS.items() if kind is object or _has(shown, kind)]
    scripts = [*([library] if charts else []), *map(_asset, needed)]
    policy = _policy(scripts)
    style = _asset(_STYLE)
    # The body is rendered first, because it numbers the pictures.
    template = environment().get_template("document.html")
    context = {
        "policy": policy,
        "version": __version__,
        "title": f"{heading.text} · traceana {page.command}",
        "config": json.dumps(config(PAGE)),
        "style": Markup(style),
        "heading": heading,
        "blocks": blocks,
        "sections": page.sections,
        "anchors": _anchors(page) if page.sections else {},
        "places": {section.command or section.name: section.name for section in page.sections},
        "command": page.command,
        "library": VEGA if charts else "",
        "licence": escape(VEGA_LICENCE) if charts else "",
        "scripts": [Markup(script) for script in scripts],
        "number": number,
        "svg": svg,
    }
    return template.render(context, pictures=_Later(pictures))


def _has(pictures: list[Illustration], *kinds: type) -> bool:
    return any(isinstance(block, kinds) for block in pictures)


def _anchors(page: Page) -> dict[str, str]:
    """Return the text of links to each anchor of ``page``."""
    blocks = [block for section in page.sections for block in section.blocks]
    findings = [item for block in blocks if isinstance(block, Findings) for item in block.items]
    evidence = {finding.anchor: "Evidence" for finding in findings if finding.anchor}
    sections = {section.name: section.title for section in page.sections}
    return {"summary": page.summary, **sections, **evidence}


class _Later:
    """The data of the pictures as JSON, complete when the template inserts it at its end."""

    def __init__(self, pictures: list[Mapping[str, Any]]) -> None:
        self._pictures = pictures

    def __html__(self) -> str:
        text = json.dumps(self._pictures, separators=(",", ":"), allow_nan=False)
        # Nothing in a script element may look like its end.
        return text.replace("<", "\\u003c")


def _heading(blocks: list[Block], page: Page) -> Heading:
    """Remove the first heading from ``blocks`` and return it; else name command and file."""
    if blocks and isinstance(blocks[0], Heading):
        first = blocks.pop(0)
        assert isinstance(first, Heading)
        return first
    source = page.data.source
    if "a" in source and "b" in source:
        runs = " → ".join(trace_file(source[run]["file"]) for run in "ab")
        return Heading(runs, f"traceana {page.command}: baseline → candidate")
    return Heading(f"traceana {page.command}", trace_file(source.get("file") or ""))


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text("utf-8")


def _policy(scripts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in scripts)
    hashes = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


VEGA: Final = "Vega, Vega-Lite, Vega-Embed"

VEGA_LICENCE: Final = """\
Vega, Vega-Lite and Vega-Embed: Copyright (c) 2015-2024, University of Washington Interactive \
Data Lab.
D3 modules, which they contain: Copyright 2010-2024 Mike Bostock.

Redistribution and use in source and binary forms, with or without modification, are permitted \
provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions \
and the following disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice, this list of \
conditions and the following disclaimer in the documentation and/or other materials provided with \
the distribution.
3. Neither the name of the copyright holder nor the names of its contributors may be used to \
endorse or promote products derived from this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR \
IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND \
FITNESS FOR A PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR \
CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL \
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, \
DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER \
IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT \
OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""


def vega_script() -> str:
    """Return the library as a script without imports, which defines ``vegaEmbed``.

    Making it takes seconds, so it is kept in the user's cache, by version. Raises
    :class:`~traceana.errors.MissingDependencyError` without vl-convert-python.
    """
    require_vl_convert()
    import vl_convert

    key = version("vl-convert-python")
    if (kept := cache.read("vega", f"{key}.js", key)) is None:
        kept = str(vl_convert.javascript_bundle()).encode()  # type: ignore[call-arg]  # its stub demands a snippet
        cache.write("vega", f"{key}.js", key, kept)
    return kept.decode()
