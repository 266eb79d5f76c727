"""Classes of protocol buffers for the fields that a reader needs, without generated code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Messages = dict[str, dict[str, tuple[int, str | list[str]]]]
"""Message: field: (number, type); [type] is a repeated field."""


def message_classes(
    package: str, messages: Messages, defaults: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the protobuf classes of ``messages``, in a pool of their own.

    ``defaults`` are values of fields that are missing.
    """
    # Imported on demand: few formats have messages that are decoded one by one.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    whole = f"traceana.{package}"
    of_field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"traceana/{package}.proto", package=whole, syntax="proto2"
    )
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = described.field.add(name=name, number=number, label=of_field.LABEL_OPTIONAL)
            if isinstance(kind, list):
                field.label, (kind,) = of_field.LABEL_REPEATED, kind
            if kind in messages:
                field.type, field.type_name = of_field.TYPE_MESSAGE, f".{whole}.{kind}"
            else:
                field.type = of_field.Type.Value(f"TYPE_{kind.upper()}")
            if defaults and name in defaults:
                field.default_value = defaults[name]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{whole}.{name}"))
        for name in messages
    }
