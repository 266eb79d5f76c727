"""A page in a notebook: in a sandboxed frame, and as an image and tables where no script runs."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

from markupsafe import Markup
from msgspec.structs import replace

from traceana.errors import MissingDependencyError
from traceana.report.html.elements import environment
from traceana.report.page import Illustration, Timeline, in_order, pictures_of

if TYPE_CHECKING:
    from traceana.report.page import Block, Page

ROWS: Final = 40
"""Rows of a table in a notebook, if the terminal has no limit."""


def render(page: Page) -> str:
    """Return ``page`` as a fragment of HTML that a notebook shows.

    A page with pictures is a document in a sandboxed frame. Where scripts do not run or frames are
    removed, an SVG image of the pictures and the tables take its place. A page without pictures is
    its tables alone. What is not installed is left out; a line has the command that installs it.
    """
    pictures = pictures_of(page)
    made = {"image": Markup(), "frame": Markup()}
    missing: dict[str, None] = {}
    for name, make in (("image", _image), ("frame", _document)):
        if pictures:
            try:
                made[name] = make(page)
            except MissingDependencyError as error:
                missing[str(error)] = None
    template = environment().get_template("notebook.html")
    return template.render(
        made,
        blocks=[block for block in in_order(page.blocks) if not isinstance(block, Illustration)],
        command=page.command,
        pictures=[block.title for block in pictures],
        missing=[*missing],
    )


def _image(page: Page) -> Markup:
    """Return the URL of the pictures as an image."""
    from traceana.report.charts.plot import page_file

    return Markup("data:image/svg+xml;base64,") + b64encode(page_file(page, "svg")).decode()


def _document(page: Page) -> Markup:
    """Return the page as the value of an attribute in single quotes."""
    from traceana.report.html import html_file

    # The scripts hold many double quotes, which need no reference between single ones.
    text = (
        html_file.render(_shortened(page), drawn=True).replace("&", "&amp;").replace("'", "&#39;")
    )
    return Markup(text.replace("<", "&lt;").replace(">", "&gt;"))


def _shortened(page: Page) -> Page:
    """Return ``page`` with the timeline of one step."""

    def blocks(all_: tuple[Block, ...]) -> tuple[Block, ...]:
        return tuple(block.first if type(block) is Timeline else block for block in all_)

    sections = tuple(replace(section, blocks=blocks(section.blocks)) for section in page.sections)
    return replace(page, blocks=blocks(page.blocks), sections=sections)
