"""Vega-Lite, which draws the charts: its scripts as one text, from the package vl-convert."""

from __future__ import annotations

import gzip
from base64 import b64encode
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from traceana.errors import MissingExtraError
from traceana.files import cache_folder, write_whole

NAME: Final = "Vega, Vega-Lite, Vega-Embed"

LICENCE: Final = """\
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


def script() -> str:
    """Return the library as a script without imports, which defines ``vegaEmbed``.

    Making it takes seconds, so it is kept in the user's cache, by version. Raises
    :class:`~traceana.errors.MissingExtraError` without vl-convert-python.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError("HTML needs vl-convert: pip install 'traceana[html]'") from error
    kept = cache_folder("vega") / f"{version('vl-convert-python')}.js"
    try:
        return kept.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        made = str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub demands a snippet
    _keep(kept, made)
    return made


@lru_cache(maxsize=1)
def packed(text: str) -> str:
    """Return ``text`` compressed by gzip, in Base64: less than half of its size."""
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _keep(path: Path, text: str) -> None:
    """Write the cache; without a place to write, the next page makes the text again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError:
        return
