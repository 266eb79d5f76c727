"""The values that a chart's specification draws."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Any

from traceana.report.charts.specification import specification
from traceana.report.page import Chart

SVG = "{http://www.w3.org/2000/svg}"


def columns(layer: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of a layer as columns."""
    rows = layer["data"]["values"]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def layers(view: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the layers of a view, a text without its halo."""
    halo = {"type": "text", "strokeWidth": 4}
    return [one for one in view["layer"] if not halo.items() <= one["mark"].items()]


def drawn(chart: Chart) -> list[dict[str, Any]]:
    """Return for each marks of ``chart`` its shape, its colours and the columns of its values."""
    found = []
    for marks, layer in zip(chart.marks, layers(specification(chart)), strict=True):
        scale = layer["encoding"].get("color", {}).get("scale")
        colours = dict(zip(scale["domain"], scale["range"], strict=True)) if scale else {}
        found.append({"shape": marks.shape, "colours": colours, **columns(layer)})
    return found


def views(specification_: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the views of the specification of a page."""
    for row in specification_["vconcat"]:
        yield from row.get("hconcat", [row])


def texts(svg: bytes) -> set[str]:
    """Return the texts of an SVG, each with its lines in one."""
    tree = ElementTree.fromstring(svg)
    return {" ".join("".join(one.itertext()).split()) for one in tree.iter(f"{SVG}text")}
