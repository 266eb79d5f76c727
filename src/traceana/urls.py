"""Passwords and signatures of URLs, which no output shows."""

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
HIDDEN: Final = "***"
"""What stands for a secret."""


def without_secrets(text: str) -> str:
    """Return ``text`` with the URLs in it without user, password, signature and token."""
    if ":/" in text:
        text = re.sub(_USER, r"\1", text)
    if "=" in text:
        text = re.sub(_SECRET, rf"\1{HIDDEN}", text)
    return text
