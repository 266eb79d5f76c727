"use strict";
// Charts: a picture's columns become a specification of Vega-Lite, in the colours of the page.
traceana.charts = (pictures) => {
  const LETTER = 6.6; // pixels of the labels of axes, on average
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const theme = () => {
    const ink = style("--ink");
    const faint = style("--line");
    const axis = { labelColor: ink, titleColor: ink, gridColor: faint, domainColor: faint };
    return {
      background: null,
      font: style("--font"),
      axis: { ...axis, tickColor: faint, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 400 },
      legend: { labelColor: ink, titleColor: ink, labelFontSize: 12, labelLimit: 260, symbolSize: 90 },
      view: { stroke: null },
      range: { category: traceana.palette },
      rule: { color: ink },
    };
  };

  // The pixels of the names on an axis.
  const roomOf = (field, wide) => (field === "y" ? Math.min(0.35 * wide, 320) : 160);

  const isText = (values) => values.some((value) => typeof value === "string");

  // The names on an axis as they fit there.
  const brief = (picture, field, wide) => {
    const texts = picture.marks.flatMap((marks) => marks[field]).filter((value) => typeof value === "string");
    return traceana.distinct(texts, Math.floor(roomOf(field, wide) / LETTER));
  };

  const rows = (marks, short) => {
    const keys = ["x", "y", "y_end", "colour", "size", "tips", "text"].filter((key) => marks[key]);
    return marks.x.map((_, at) => {
      const row = { at };
      for (const key of keys) row[key] = short[key]?.get(marks[key][at]) ?? marks[key][at];
      return row;
    });
  };

  // The lines of a title, which is cut where it is longer than its axis.
  const lines = (title, room) => {
    const letters = Math.floor(room / LETTER);
    const found = [];
    for (const word of title.split(" ")) {
      if (found.length && `${found.at(-1)} ${word}`.length <= letters) found.push(`${found.pop()} ${word}`);
      else found.push(word);
    }
    return found;
  };

  const axis = (given, values, wide) => {
    const text = isText(values);
    const found = { title: given.title, field: given.field };
    if (text) {
      const room = roomOf(given.field, wide);
      return { ...found, type: "nominal", sort: null, axis: { labelLimit: 1.3 * room, labelAngle: given.field === "x" && values.length > 6 ? -35 : 0, labelOverlap: given.field === "x" && values.length > 24, title: given.title } };
    }
    return {
      ...found,
      type: "quantitative",
      scale: given.log ? { type: "log", nice: false, padding: 16 } : { type: "linear", zero: given.zero, nice: given.zero, padding: given.zero ? 0 : 12 },
      axis: { title: given.title, tickCount: 6, ...(given.ticks.length && { values: given.ticks }), ...(given.percent && { format: ".0%" }), ...(given.log && { format: given.prefixes ? "~s" : "~g" }) },
    };
  };

  const shapes = () => ({
    point: { type: "point", filled: true, opacity: 0.8, size: 60 },
    line: { type: "line", strokeWidth: 2, point: { size: 45 } },
    band: { type: "area", opacity: 0.15 },
    step: { type: "line", strokeWidth: 1.5, interpolate: "step-after" },
    bar: { type: "bar", color: traceana.palette[0] },
    cell: { type: "rect", stroke: style("--paper"), strokeWidth: 0.5 },
    rule: { type: "line", strokeWidth: 1.2, strokeDash: [5, 4], color: style("--dim") },
    // The page's colour around the letters: lines end beside them.
    text: { type: "text", align: "right", baseline: "bottom", dy: -2, fontSize: 11, fill: style("--dim"), stroke: style("--paper"), strokeWidth: 4 },
  });

  const layer = (picture, marks, number, wide) => {
    const columns = Math.min(Math.max(Math.floor(wide / 150), 1), 4);
    const long = { x: wide - (isText(marks.y) ? roomOf("y", wide) : 70), y: picture.height };
    // Layers share their axes; Vega-Lite would join the lines of all their titles.
    const title = (of) => (number === 0 && picture[of].title ? lines(picture[of].title, long[of]) : null);
    const encoding = {
      x: axis({ ...picture.x, field: "x", title: title("x") }, marks.x, wide),
      y: axis({ ...picture.y, field: "y", title: title("y") }, marks.y, wide),
    };
    if (marks.y_end) encoding.y2 = { field: "y_end" };
    if (marks.colour && marks.shape === "rule") encoding.detail = { field: "colour" };
    if (marks.colour && marks.shape !== "rule") {
      // Names that stand on an axis need no legend.
      const named = [marks.x, marks.y].some((values) => values.every((value, at) => value === marks.colour[at]));
      const legend = !named && (["point", "cell"].includes(marks.shape) || new Set(marks.colour).size > 1) ? { title: null, orient: "bottom", columns } : null;
      // The classes have the colours of the other pictures.
      const scale = marks.colours && { domain: Object.keys(marks.colours), range: Object.values(marks.colours) };
      encoding.color = { field: "colour", type: "nominal", sort: null, legend, ...(scale && { scale }) };
      // A shape beside the colour: neither alone carries what it means.
      if (marks.shape === "point") encoding.shape = { field: "colour", type: "nominal", sort: null, legend, ...(scale && { scale: { domain: scale.domain } }) };
    }
    if (marks.grouped) encoding.yOffset = { field: "colour", sort: null };
    if (marks.size) encoding.size = { field: "size", type: "quantitative", legend: null, scale: { range: [30, 600] } };
    if (marks.tips) encoding.tooltip = { field: "tips", type: "nominal" };
    if (marks.tips) encoding.description = { field: "tips", type: "nominal" };
    if (marks.text) encoding.text = { field: "text", type: "nominal" };
    if (["line", "step", "band", "rule"].includes(marks.shape)) encoding.order = { field: "at" };
    return { data: { name: `marks${number}` }, mark: shapes()[marks.shape], encoding };
  };

  const specification = (picture, wide) => {
    const short = { x: brief(picture, "x", wide), y: brief(picture, "y", wide) };
    return {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      width: "container",
      height: picture.height,
      autosize: { type: "fit-x", contains: "padding" },
      datasets: Object.fromEntries(picture.marks.map((marks, at) => [`marks${at}`, rows(marks, short)])),
      layer: picture.marks.map((marks, at) => layer(picture, marks, at, wide)),
      config: theme(),
    };
  };

  // Arrow keys go from mark to mark and show what the mouse shows.
  const keyboard = (canvas) => {
    let at = -1;
    canvas.tabIndex = 0;
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") traceana.hideTip();
      if (!step) return;
      event.preventDefault();
      const found = [...canvas.querySelectorAll("svg *")].filter((one) => one.__data__?.datum?.tips);
      if (!found.length) return;
      at = (at + step + found.length) % found.length;
      for (const one of found) one.classList.toggle("current", one === found[at]);
      traceana.showTipAt(found[at].__data__.datum.tips, found[at]);
    });
    canvas.addEventListener("blur", () => traceana.hideTip());
  };

  const draw = async (figure) => {
    const canvas = figure.querySelector(".canvas");
    const result = await vegaEmbed(canvas, specification(pictures[figure.dataset.picture], canvas.clientWidth), {
      ast: true, // expressions are interpreted, not compiled: the policy forbids eval
      renderer: "svg",
      actions: false,
      defaultStyle: false,
      tooltip: (_, event, __, value) =>
        value ? traceana.showTip(String(value), event.clientX, event.clientY) : traceana.hideTip(),
    });
    figure.dataset.drawn = "yes";
    return result;
  };

  const figures = [...document.querySelectorAll("figure.chart")];
  for (const figure of figures) keyboard(figure.querySelector(".canvas"));
  const all = () => Promise.all(figures.map(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  return all();
};
