"""Defaults of options: environment variables, the project's file, the user's file, in this order.

The project's file is the nearest ``pyproject.toml``, which comes with a repository of anybody: it
can name no file outside its folder, and nothing that is executed or written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceana.errors import InvalidInputError, TraceanaError, near

VARIABLES: Final = "TRACEANA_"
"""The beginning of an environment variable; the key follows in capitals."""
_PROJECT: Final = "pyproject.toml"
_LONGEST: Final = 1 << 20
"""Bytes of the longest file that is searched for a table of ours."""


class Source(NamedTuple):
    """A source of settings: what it is, and the settings in effect, or the error that it has."""

    name: str
    settings: Mapping[str, str]
    error: str = ""


def _text(value: str) -> None:
    if not value.strip():
        raise ValueError("is empty")


def _format(value: str) -> None:
    from traceana.report.render import BINARY_FORMATS, Format

    formats = [form.value for form in Format if form not in BINARY_FORMATS]
    if value not in formats:
        raise ValueError(f"is not one of {', '.join(formats)}")


def _colour(value: str) -> None:
    if value not in ("auto", "never"):
        raise ValueError("is not one of auto, never")


KEYS: Final[Mapping[str, Callable[[str], None]]] = {
    "rules": _text,
    "device_model": _text,
    "step_marker": _text,
    "format": _format,
    "color": _colour,
}
"""The keys, each with the check of its value. All but ``color`` are options of commands."""


def in_effect() -> dict[str, str]:
    """Return the settings, each of the first source that has it.

    Raises :class:`~traceana.errors.InvalidInputError`, and the errors of
    :func:`traceana.files.content`.
    """
    settings: dict[str, str] = {}
    for read in _PLACES:
        settings = {**read().settings, **settings}
    return settings


def sources() -> Iterator[Source]:
    """Yield the places of settings, the first one that counts first."""
    for read in _PLACES:
        try:
            yield read()
        except TraceanaError as error:
            yield Source(str(error), {}, str(error))


def user_file() -> Path:
    """Return the path of the user's file, ``traceana/config.toml`` below ``$XDG_CONFIG_HOME``."""
    from traceana.files import config_folder

    return config_folder() / "config.toml"


def project_file() -> Path | None:
    """Return the ``pyproject.toml`` nearest to the current folder, None without one."""
    try:
        here = Path.cwd()
    except OSError:  # it was deleted
        return None
    return next(
        (file for folder in (here, *here.parents) if (file := folder / _PROJECT).is_file()), None
    )


def _of_environment() -> Source:
    settings = {
        key: value for key in KEYS if (value := os.environ.get(f"{VARIABLES}{key.upper()}"))
    }
    for key, value in settings.items():
        _check(f"{VARIABLES}{key.upper()}", key, value)
    return Source("environment", settings)


def _of_project() -> Source:
    file = project_file()
    if file is None:
        return Source(f"no {_PROJECT}", {})
    with file.open("rb") as opened:
        text = opened.read(_LONGEST)
    if b"traceana" not in text:  # a file of another tool is not parsed
        return Source(str(file), {})
    tools = _toml(file).get("tool")
    settings = _settings(file, tools.get("traceana", {}) if isinstance(tools, dict) else {})
    if (rules := settings.get("rules")) is not None:
        target = (file.parent / rules).resolve()
        if Path(rules).is_absolute() or not target.is_relative_to(file.parent.resolve()):
            raise InvalidInputError(
                f"{file}: rules {rules!r} leads out of the project: name a file in it, or set "
                f"rules in {user_file()}"
            )
        settings["rules"] = str(target)
    return Source(str(file), settings)


def _of_user() -> Source:
    file = user_file()
    if not file.exists():
        return Source(f"{file}: absent", {})
    settings = _settings(file, _toml(file))
    if (rules := settings.get("rules")) is not None:
        settings["rules"] = str(file.parent / Path(rules).expanduser())
    return Source(str(file), settings)


_PLACES: Final = (_of_environment, _of_project, _of_user)


def _toml(file: Path) -> dict[str, Any]:
    import rtoml

    from traceana.files import text_content

    try:
        return rtoml.loads(text_content(file, "configuration file"))
    except (rtoml.TomlParsingError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{file}: invalid TOML ({error}): mend it") from error


def _settings(file: Path, table: Any) -> dict[str, str]:
    if not isinstance(table, dict):
        raise InvalidInputError(f"{file}: traceana is not a table: write [tool.traceana]")
    for key, value in table.items():
        _check(f"{file}: {key}", key, value)
    return dict(table)


def _check(where: str, key: str, value: Any) -> None:
    if key not in KEYS:
        likely = near(key, KEYS)
        hint = f"did you mean {likely}?" if likely else f"use one of {', '.join(KEYS)}"
        raise InvalidInputError(f"{where} is not a setting: {hint}")
    if not isinstance(value, str):
        raise InvalidInputError(f"{where} is not text: write it in quotes")
    try:
        KEYS[key](value)
    except ValueError as error:
        raise InvalidInputError(f"{where} {value!r} {error}") from error
