"""The hooks of the documentation site (`mkdocs.yml`), which `make site` builds into `build/site`.

Pages of the repository that are outside of `docs/` are pages of the site too: their links, and
those to them, are moved. Links to other hosts are listed in `build/external-links.txt`, not
followed.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
    "SECURITY.md": "project/security.md",
    "fixtures/README.md": "project/fixtures.md",
    "fixtures/files-read.md": "project/files-read.md",
    "workloads/README.md": "project/workloads.md",
}
"""By file of the repository: its page."""
EXTERNAL: Final = ROOT / "build" / "external-links.txt"

_FETCHED: Final = "https://unpkg.com/iframe-worker/shim"
"""What the theme's search needs where a page is opened from a folder, and fetches from a host."""

_JUPYTER: Final = ROOT / "tools" / "jupyter"
"""Settings of the kernels that execute the notebooks: without encryption each prints a warning."""

_LINK: Final = re.compile(r"(\]\()([^)#\s]*)((?:#[^)\s]*)?\))")
_HOST: Final = re.compile(r"https?://\w[^\s)>`\"'|]*")

_external: dict[str, set[str]] = {}


def on_config(config: MkDocsConfig) -> None:
    """Let the executed notebooks use the settings of this repository."""
    del config
    others = os.environ.get("JUPYTER_CONFIG_PATH", "")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, (str(_JUPYTER), others)))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the site's files with the pages outside of `docs/`."""
    _external.clear()
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with links to where their files are in the site."""
    del config, files
    here = page.file.src_uri
    for link in addresses(markdown):
        _external.setdefault(link, set()).add(here)
    source = {page: source for source, page in OUTSIDE.items()}.get(here, f"docs/{here}")
    return _LINK.sub(lambda link: link[1] + _moved(link[2], source, here) + link[3], markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Return a page that fetches nothing from other hosts."""
    del config
    here = posixpath.dirname(page.file.dest_uri) or "."
    return output.replace(_FETCHED, posixpath.relpath("assets/iframe-worker.js", here))


def on_post_build(config: MkDocsConfig) -> None:
    """List the links to other hosts; delete the page of a server."""
    Path(config.site_dir, "404.html").unlink()
    lines = [f"{link}\t{', '.join(sorted(_external[link]))}\n" for link in sorted(_external)]
    EXTERNAL.parent.mkdir(exist_ok=True)
    EXTERNAL.write_text("".join(lines), encoding="utf-8")


def addresses(markdown: str) -> list[str]:
    """Return the addresses at other hosts in a text. A scheme without a host is no address."""
    return [link.rstrip(".,") for link in _HOST.findall(markdown)]


def _moved(target: str, source: str, here: str) -> str:
    """Return a link of the file ``source`` as a link of its page ``here``."""
    if not target or "://" in target:
        return target
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if file not in OUTSIDE and not file.startswith("docs/"):
        return target
    return posixpath.relpath(
        OUTSIDE.get(file, file.removeprefix("docs/")), posixpath.dirname(here) or "."
    )
