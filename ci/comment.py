"""Writes a file as a comment on a pull request of GitHub or a merge request of GitLab.

    python ci/comment.py FILE

A comment that an earlier run wrote is updated: it begins with a hidden mark. GitHub: GH_TOKEN,
REPOSITORY (owner/name), PULL_REQUEST, and GITHUB_API_URL of a server of one's own. GitLab:
TRACEANA_TOKEN, CI_API_V4_URL, CI_MERGE_REQUEST_PROJECT_ID, CI_MERGE_REQUEST_IID. COMMENT_NAME tells
several comments of one request apart. Only Python's standard library is needed.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = 100
MOST_PAGES = 100
MOST = 60_000
"""Characters of a comment: GitHub takes 65,536."""


def main(words: list[str], given: Mapping[str, str]) -> None:
    """Write the comment; exit with a line where that fails."""
    if len(words) != 1:
        sys.exit(__doc__)
    try:
        written(Path(words[0]).read_text("utf-8"), given)
    except KeyError as error:
        sys.exit(f"comment not written: set {error.args[0]}")
    except (OSError, ValueError) as error:
        sys.exit(f"comment not written: {error}")


def written(text: str, given: Mapping[str, str]) -> None:
    """Write ``text`` as a comment, in place of an earlier one."""
    mark = f"<!-- traceana: {given.get('COMMENT_NAME', 'gate').replace('-->', '')} -->"
    if len(text) > MOST:
        text = f"{text[:MOST]}\n\n… (cut: the artifact has the rest)\n"
    body = {"body": f"{mark}\n{text}"}
    if given.get("PULL_REQUEST"):
        api = given.get("GITHUB_API_URL") or "https://api.github.com"
        repository = f"{api}/repos/{given['REPOSITORY']}"
        comments = f"{repository}/issues/{given['PULL_REQUEST']}/comments"
        headers = {"Authorization": f"Bearer {given['GH_TOKEN']}"}
        each, update = f"{repository}/issues/comments", "PATCH"
    else:
        project = f"{given['CI_API_V4_URL']}/projects/{given['CI_MERGE_REQUEST_PROJECT_ID']}"
        comments = f"{project}/merge_requests/{given['CI_MERGE_REQUEST_IID']}/notes"
        headers = {"PRIVATE-TOKEN": given["TRACEANA_TOKEN"]}
        each, update = comments, "PUT"
    number = earlier(comments, mark, headers)
    if number is None:
        sent(comments, "POST", headers, body)
    else:
        sent(f"{each}/{number}", update, headers, body)


def earlier(comments: str, mark: str, headers: Mapping[str, str]) -> int | None:
    """Return the number of the comment that begins with ``mark``; None without one."""
    for page in range(1, MOST_PAGES + 1):
        listed = sent(f"{comments}?per_page={PAGE}&page={page}", "GET", headers)
        for comment in listed:
            if str(comment.get("body", "")).startswith(mark):
                return int(comment["id"])
        if len(listed) < PAGE:
            break
    return None


def sent(
    url: str, method: str, headers: Mapping[str, str], body: Mapping[str, str] | None = None
) -> Any:
    """Return the JSON that the server answers."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is not a web address")
    request = urllib.request.Request(  # checked above
        url,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={**headers, "Content-Type": "application/json", "User-Agent": "traceana"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
