"""Text that others wrote, as one line that is safe to show: in an error, a terminal or a page."""

from __future__ import annotations

import re
from typing import Final

# Every command imports this: a pattern is compiled where it is first needed.
_USER: Final = (
    # A path has one slash: pathlib joins two. What is searched for begins with fixed letters, which
    # takes a hundredth of the time of an alternative.
    r"""(?ix) ( :/
      (?: / | (?<=http:/) | (?<=https:/) | (?<=ftp:/) | (?<=s3:/) | (?<=gs:/) | (?<=az:/) ) )
    [^/\s"'<>\\]*@"""
)
"""User and password, before the host."""
_SECRET: Final = r"""(?ix) ( [?&;]
      (?: x-(?:amz|goog|oss|cos|ms)-(?:signature|credential|security-token)
        | (?:q-)?sign(?:ature)? | sig | hmac | policy | jwt | auth | (?:[a-z]{1,12}[_-]?)?token
        | awsaccesskeyid | googleaccessid | ossaccesskeyid | (?:api|access|private|secret)[_-]?key
        | pass(?:word|wd)? | pwd | secret | credentials? ) = )
    [^&\s"'<>\\#]+"""
"""Parameters of signed URLs (S3, Google Cloud, Azure, CloudFront), tokens and passwords."""
_HOSTILE: Final = (
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters of ASCII and Latin-1: ANSI sequences, line ends
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, bidirectional
    "\U000e0000-\U000e007f"  # tags
    "]"
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
HIDDEN: Final = "***"
"""What stands for a secret."""


def plain(text: str) -> str:
    """Return ``text`` as one line, with control, bidirectional and invisible characters escaped.

    They become ``\\x1b``, ``\\u202e`` ..., so that they cannot control the terminal or hide text.
    URLs have no passwords and signatures. Other characters are unchanged.
    """
    # All that is written out is not printable; most texts are.
    if not text.isprintable():
        text = re.sub(_HOSTILE, _written_out, as_unicode(text))
    return without_secrets(text)


def _written_out(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


def as_unicode(text: str) -> str:
    """Return ``text`` with the bytes of a file name that are not UTF-8 written as ``\\xff``.

    Python represents them by lone surrogates, which no table and no output can hold.
    """

    def escaped(match: re.Match[str]) -> str:
        code = ord(match.group())
        is_byte = 0xDC80 <= code <= 0xDCFF
        return f"\\x{code - 0xDC00:02x}" if is_byte else f"\\u{code:04x}"

    return _SURROGATE.sub(escaped, text)


def without_secrets(text: str) -> str:
    """Return ``text`` with the URLs in it without user, password, signature and token."""
    if ":/" in text:
        text = re.sub(_USER, r"\1", text)
    if "=" in text:
        text = re.sub(_SECRET, rf"\1{HIDDEN}", text)
    return text
