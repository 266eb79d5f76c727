"""The files of a job's ranks: on this machine, or at URLs of object stores and web servers."""

from __future__ import annotations

import os
import re
import warnings
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from traceana.errors import MissingDependencyError, NotFoundError, RedirectWarning, how_to_install
from traceana.files import scratch_folder
from traceana.plain_text import as_unicode, without_secrets
from traceana.readers.windows import worker_name, worker_of


class Remote(msgspec.Struct, frozen=True):
    """A file at a URL; ``version`` changes with its content."""

    url: str
    size: int
    version: str

    def __str__(self) -> str:
        """Return the URL as it is shown."""
        return shown_url(self.url)


class Windows(msgspec.Struct, frozen=True):
    """The recordings of one process, one after the other: windows of the profiler's schedule."""

    files: tuple[Path, ...]

    def __str__(self) -> str:
        """Return the path without what differs between the windows."""
        first = self.files[0]
        return str(first.with_name(worker_name(first) or first.name))


Source = Path | Remote | Windows

_URL: Final = re.compile(r"(?i)([a-z][a-z0-9+.-]*)://([^/]*)/?(.*)", re.DOTALL)
_WEB: Final = ("http", "https")
_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
_PATTERN: Final = re.compile(r"[*?\[]")
_RETRIES: Final[Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
# A large file takes longer than the default of 30 s. An endpoint without TLS is one that the user
# has named.
_CLIENT: Final[Any] = {
    "allow_http": True,
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=60),
    "timeout": timedelta(hours=6),
}
_REDIRECT_S: Final = 10
_MOST_TEXT: Final = 200
_REQUEST: Final = re.compile(r" in [0-9.]+.?s\b.*? - ")
_REPORTED: Final = (re.compile("<Code>([^<]*)<"), re.compile("<Message>([^<]*)<"))
"""The message of an object store in XML."""


def shown_url(url: str) -> str:
    """Return ``url`` as it is shown: without user and password, and on the web without its query,
    which may be a signature."""
    return without_secrets(_without_query(url))


def _is_web(url: str) -> bool:
    return url.partition(":")[0].lower() in _WEB


def _without_query(url: str) -> str:
    return url.partition("#")[0].partition("?")[0] if _is_web(url) else url


def is_url(text: str | os.PathLike[str]) -> bool:
    """Return whether ``text`` is a URL; paths never are."""
    return isinstance(text, str) and _URL.fullmatch(text) is not None


def sources(given: Sequence[str | os.PathLike[str]]) -> list[Source]:
    """Return the files of the ranks in ``given``; several windows of one process are a source.

    Paths are traces, folders of traces, recorded runs and saved bundles. URLs are files
    (``https://``, and ``s3://``, ``gs://``, ``az://`` with the credentials of the environment), and
    of object stores folders (ending with ``/``) and patterns. Raises the errors of
    :func:`traceana.readers.inputs.resolve`, ``NotFoundError`` where an object store
    cannot be listed, and ``MissingDependencyError``.
    """
    if not given:
        raise NotFoundError("no input: give the files of a job's ranks, or their folder")
    from traceana.readers.inputs import resolve

    files: dict[Path | Remote, None] = {}
    for name in given:
        if is_url(name):
            files.update(dict.fromkeys(_at(str(name))))
        elif Path(name).exists():
            files.update(dict.fromkeys(resolve(Path(name)).files))
        else:
            raise NotFoundError(f"{Path(name)} does not exist: check the path")
    return _with_windows(list(files))


def _with_windows(files: Sequence[Path | Remote]) -> list[Source]:
    """Return ``files``, those of one process together."""
    of_process: dict[str | Path | Remote, list[Path | Remote]] = {}
    for file in files:
        worker = worker_of(file) if isinstance(file, Path) else None
        of_process.setdefault(worker or file, []).append(file)
    return [
        files[0]
        if len(files) == 1
        else Windows(tuple(file for file in files if isinstance(file, Path)))
        for files in of_process.values()
    ]


def _at(url: str) -> list[Remote]:
    """Return the files at ``url``: a pattern's files, or a folder's files with the names of
    traces."""
    from traceana.readers.folder_search import is_name_of_trace

    store, key = _store(url)
    if _is_web(url):
        _warn_of_another_host(url)
    is_signed = _without_query(url) != url
    root = url.removesuffix(key).removesuffix("/") + "/"
    pattern = None if is_signed else _PATTERN.search(key)
    with _explained(url):
        if is_signed:
            # The signature is of GET. The content is not read here.
            return [_remote(url, store.get(key).meta)]
        if pattern is None and key and not key.endswith("/"):
            return [_remote(url, store.head(key))]
        # Objects are listed by whole folders.
        folder = key[: pattern.start()].rpartition("/")[0] if pattern else key.rstrip("/")
        listed = sorted(
            (listing for batch in store.list(folder or None) for listing in batch),
            key=lambda listing: listing["path"],
        )
    wanted = [
        listing
        for listing in listed
        if (
            fnmatchcase(listing["path"], key)
            if pattern
            else is_name_of_trace(PurePosixPath(listing["path"]).name)
        )
    ]
    if not wanted:
        raise NotFoundError(f"{shown_url(url)}: no traces there, of {len(listed):,} objects")
    return [_remote(root + listing["path"], listing) for listing in wanted]


def _remote(url: str, listing: Any) -> Remote:
    version = listing["e_tag"] or listing["version"] or str(listing["last_modified"])
    return Remote(url, listing["size"], version)


def _store(url: str) -> tuple[Any, str]:
    """Return the store of ``url`` and the key in it."""
    parts = _URL.fullmatch(_without_query(url))
    assert parts is not None
    scheme, host, key = parts.groups()
    if scheme.lower() not in _SCHEMES:
        raise NotFoundError(
            f"{shown_url(url)}: a URL that is read begins with s3://, gs://, az://, https:// or "
            "http://"
        )
    try:
        from obstore.store import HTTPStore, from_url
    except ImportError as error:
        raise MissingDependencyError(f"URLs need obstore: {how_to_install('remote')}") from error
    user, _, host = host.rpartition("@")
    options: Any = dict(_CLIENT)
    if user:
        options["default_headers"] = {"Authorization": _basic(user)}
    with _explained(url):
        if _is_web(url) and (user or "?" in url):
            # The store keeps the query of its URL in each request.
            query = urlsplit(url).query
            root = f"{scheme}://{host}" + f"?{query}" * bool(query)
            key = unquote(key)  # the store encodes it
            return HTTPStore.from_url(root, client_options=options, retry_config=_RETRIES), key
        return from_url(f"{scheme}://{host}", client_options=options, retry_config=_RETRIES), key


def _basic(user: str) -> str:
    """Return HTTP's authorization of ``user:password`` as it is in a URL."""
    return f"Basic {b64encode(unquote(user).encode()).decode()}"


def _warn_of_another_host(url: str) -> None:
    """Warn where the web server of ``url`` redirects to another host.

    Asks for the first byte: the store follows redirects without a word. An error is the store's to
    report.
    """
    import http.client  # not for jobs of files
    import urllib.request

    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    try:
        request = urllib.request.Request(  # http or https
            parts._replace(netloc=host, fragment="").geturl(), headers={"Range": "bytes=0-0"}
        )
        if user:
            request.add_unredirected_header("Authorization", _basic(user))
        with urllib.request.urlopen(request, timeout=_REDIRECT_S) as answered:
            there = answered.geturl()
    except (OSError, ValueError, http.client.HTTPException):
        return
    if urlsplit(there).netloc != host:
        text = f"{shown_url(url)} is redirected to another host: {urlsplit(there).hostname}"
        warnings.warn(text, RedirectWarning, stacklevel=2)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn the errors of the object store into one line with the next step."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{shown_url(url)} does not exist: check the name and the bucket"
        ) from error
    except (BaseError, OSError, ValueError) as error:
        # Kept as the reason why a rank was not read, the same in each run: without times,
        # debugging text and the request.
        text = " ".join(str(error).partition("Debug source:")[0].split())
        reported = [match[1] for pattern in _REPORTED if (match := pattern.search(text))]
        said = ": ".join([_REQUEST.split(text)[-1].partition(": <")[0], *reported])
        if len(said) > _MOST_TEXT:
            said = said[: _MOST_TEXT - 1] + "…"
        # The errors of lists and of web servers have no class of their own.
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        denied = denied or "Forbidden" in said or "Unauthorized" in said
        hint = "access denied, check the credentials in the environment: " if denied else ""
        said = without_secrets(said)
        raise NotFoundError(f"{shown_url(url)}: {hint}{said}") from error


def name_of(source: Source) -> str:
    """Return ``source`` as it is shown."""
    return str(source) if isinstance(source, Remote) else as_unicode(str(source))


def state(source: Source) -> list[str]:
    """Return texts that differ where the content of ``source`` does."""
    if isinstance(source, Remote):
        return [source.url, str(source.size), source.version]
    if isinstance(source, Windows):
        return [text for file in source.files for text in state(file)]
    texts = [str(source.resolve())]
    for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
        try:
            facts = file.stat()
        except OSError:
            continue
        texts.append(f"{file.name} {facts.st_size} {facts.st_mtime_ns} {facts.st_ino}")
    return texts


def sizes(source: Source) -> list[tuple[str, int]]:
    """Return the ending of the name and the bytes of each file of ``source``."""
    if isinstance(source, Remote):
        return [(PurePosixPath(_without_query(source.url)).suffix, source.size)]
    if isinstance(source, Windows):
        return [size for file in source.files for size in sizes(file)]
    inside = source.rglob("*") if source.is_dir() else [source]
    return [(file.suffix, file.stat().st_size) for file in inside if file.is_file()]


@contextmanager
def fetched(source: Source) -> Iterator[Path | list[Path]]:
    """Give the path, or paths, of ``source`` on this machine; a remote file is there until the end.

    Raises ``NotFoundError`` where it cannot be fetched whole.
    """
    if not isinstance(source, Remote):
        yield source if isinstance(source, Path) else list(source.files)
        return
    store, key = _store(source.url)
    with scratch_folder() as folder:
        path = folder / (PurePosixPath(key).name or "trace")
        with _explained(source.url), path.open("wb") as file:
            got = store.get(key)
            if _remote(source.url, got.meta) != source:
                raise NotFoundError(f"{source} has changed: run the command again")
            for part in got.stream():
                file.write(part)
            if file.tell() != source.size:
                raise NotFoundError(f"{source}: {file.tell():,} of {source.size:,} bytes came")
        yield path
