"""Replaces msgspec in the workloads where it is not installed: structs, and writing JSON.

A machine with a GPU has PyTorch and NumPy, and often no access to a package registry. This module
can write layer manifests and algorithm studies; reading them needs msgspec.
"""

from __future__ import annotations

import json as _json
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from inspect import get_annotations
from types import ModuleType
from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Struct:
    """A frozen dataclass with keywords; with ``omit_defaults`` fields at their default are not
    written."""

    _omit_defaults: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, omit_defaults: bool = False, frozen: bool = False, kw_only: bool = False
    ) -> None:
        cls._omit_defaults = omit_defaults
        for name in get_annotations(cls):
            default = cls.__dict__.get(name)
            if isinstance(default, dict | list):
                setattr(cls, name, field(default_factory=default.copy))
        dataclass(frozen=frozen, kw_only=kw_only)(cls)


structs = ModuleType("msgspec.structs")
structs.__dict__.update(asdict=asdict, replace=replace)


class Meta:
    """Bounds of a value, which are checked when files are read."""

    def __init__(self, **_bounds: object) -> None:
        pass


class DecodeError(ValueError):
    """Never raised: this module reads no files."""


def to_builtins(value: Any) -> Any:
    """Return ``value`` as dicts, lists and scalars."""
    if isinstance(value, Struct):
        return {
            each.name: to_builtins(content)
            for each in fields(value)  # type: ignore[arg-type]
            if not _left_out(value, each, content := getattr(value, each.name))
        }
    if isinstance(value, dict):
        return {key: to_builtins(content) for key, content in value.items()}
    if isinstance(value, tuple | list):
        return [to_builtins(content) for content in value]
    return value


def _left_out(struct: Struct, each: Any, content: object) -> bool:
    if not struct._omit_defaults:
        return False
    if each.default is not MISSING:
        return bool(content == each.default)
    return each.default_factory is not MISSING and content == each.default_factory()


class _Decoder:
    def __init__(self, *_types: object) -> None:
        pass

    def decode(self, _text: object) -> NoReturn:
        raise ModuleNotFoundError(
            "reading files needs msgspec: pip install msgspec", name="msgspec"
        )


class json:  # noqa: N801  # the name of the module that it replaces
    """``msgspec.json``."""

    Decoder = _Decoder

    @staticmethod
    def encode(value: object) -> bytes:
        """Return ``value`` as JSON."""
        return _json.dumps(to_builtins(value), ensure_ascii=False).encode()

    @staticmethod
    def format(text: bytes, *, indent: int) -> bytes:
        """Return JSON of this module unchanged: on one line, with spaces after commas."""
        assert indent == 0
        return text

    @staticmethod
    def decode(text: object, **_type: object) -> NoReturn:
        """Raise ``ModuleNotFoundError``."""
        _Decoder().decode(text)
