"use strict";
// Icicles: a row per depth, as wide as its time. Enter or a click zooms in, Escape zooms out.
traceana.icicles = (pictures) => {
  const ROW = 24;
  const LEAST = 3; // pixels: narrower nodes are drawn together
  const LEGIBLE = 44; // pixels: narrower nodes have no label
  const LETTER = 7.8; // pixels, on average

  const tree = (data) => {
    const children = data.parent.map(() => []);
    const depth = data.parent.map(() => 0);
    const start = data.parent.map(() => 0);
    data.parent.forEach((parent, at) => {
      if (parent < 0) return;
      children[parent].push(at);
      depth[at] = depth[parent] + 1;
    });
    const place = data.parent.map(() => 0);
    data.parent.forEach((parent, at) => {
      if (parent < 0) return;
      start[at] = start[parent] + place[parent];
      place[parent] += data.time_ns[at];
    });
    return { children, depth, start, deepest: Math.max(...depth) };
  };

  const show = (figure) => {
    const data = pictures[figure.dataset.picture];
    const { children, depth, start, deepest } = tree(data);
    const canvas = figure.querySelector(".canvas");
    const trail = traceana.element("p", { class: "remark", "aria-live": "polite" });
    const back = traceana.element("button", { type: "button" }, "Zoom out");
    const fit = traceana.element("button", { type: "button", "aria-label": "Fit the whole tree" }, "Fit");
    const tools = traceana.element("div", { class: "tools" }, back, fit, trail);
    canvas.before(tools);
    let top = 0;
    let focused = 0;

    const height = (deepest + 1) * ROW;
    const svg = traceana.drawn("svg", { width: "100%", height });
    canvas.append(svg);

    const draw = () => {
      const width = canvas.clientWidth || 600;
      const scale = width / Math.max(data.time_ns[top], 1);
      svg.replaceChildren();
      svg.setAttribute("height", height - depth[top] * ROW);
      let merged = null;
      const flush = () => {
        if (!merged) return;
        const box = traceana.drawn("rect", {
          x: merged.x, y: merged.y, width: Math.max(merged.end - merged.x, 1), height: ROW - 2, class: "merged",
        });
        box.dataset.tip = `${merged.count} more layers, each below ${LEAST} pixels: zoom in to see them`;
        svg.append(box);
        merged = null;
      };
      const visit = (at) => {
        const x = (start[at] - start[top]) * scale;
        const wide = data.time_ns[at] * scale;
        const y = (depth[at] - depth[top]) * ROW;
        if (wide < LEAST) {
          if (merged && merged.y === y && x - merged.end < 1) {
            merged.end = x + wide;
            merged.count += 1;
          } else {
            flush();
            merged = { x, y, end: x + wide, count: 1 };
          }
          return;
        }
        node(at, x, y, wide);
        for (const child of children[at]) visit(child);
        flush();
      };
      visit(top);
      flush();
      back.disabled = top === 0;
      fit.disabled = top === 0;
      trail.textContent = path(top) + " · " + data.time[top];
    };

    const node = (at, x, y, wide) => {
      const group = traceana.drawn("g", {
        transform: `translate(${x},${y})`,
        role: "treeitem",
        tabindex: at === focused ? 0 : -1,
        "aria-label": `${data.label[at]}, ${data.tips[at].replaceAll("\n", ", ")}`,
        "aria-level": depth[at] + 1,
      });
      if (children[at].length) group.setAttribute("aria-expanded", "true");
      group.dataset.at = at;
      group.append(
        traceana.drawn("rect", {
          width: Math.max(wide - 1, 0.5), height: ROW - 2, rx: 2, fill: data.colours[data.category[at]],
        }),
      );
      if (wide > LEGIBLE) {
        // HTML cuts text with an ellipsis where it ends; SVG does not.
        const box = traceana.drawn("foreignObject", { width: wide - 1, height: ROW - 2 });
        // A name that does not fit keeps its end, where layers differ.
        const label = data.label[at];
        const letters = Math.floor((wide - 9) / LETTER);
        const tail = label.length > letters ? Math.floor(letters / 2) : 0;
        const parts = tail ? [label.slice(0, -tail), label.slice(-tail)] : [label];
        const name = traceana.element("div", {}, ...parts.map((part) => traceana.element("span", {}, part)));
        name.style.color = traceana.readable(data.colours[data.category[at]]);
        box.append(name);
        group.append(box);
      }
      svg.append(group);
    };

    const path = (at) => data.tips[at].split("\n")[0];

    const zoom = (at) => {
      top = at;
      focused = at;
      draw();
      svg.querySelector(`[data-at="${focused}"]`)?.focus();
    };

    const move = (at) => {
      const target = svg.querySelector(`[data-at="${at}"]`);
      if (!target) return;
      svg.querySelector(`[data-at="${focused}"]`)?.setAttribute("tabindex", -1);
      focused = at;
      target.setAttribute("tabindex", 0);
      target.focus();
    };

    const beside = (at, step) => {
      const around = data.parent[at] < 0 ? [at] : children[data.parent[at]];
      return around[around.indexOf(at) + step] ?? at;
    };

    svg.addEventListener("click", (event) => {
      const group = event.target.closest("g[data-at]");
      if (group) zoom(Number(group.dataset.at));
    });
    svg.addEventListener("keydown", (event) => {
      const at = Number(event.target.closest("g[data-at]")?.dataset.at ?? top);
      const parent = data.parent[at];
      const go = {
        Enter: () => zoom(at),
        " ": () => zoom(at),
        Escape: () => zoom(Math.max(data.parent[top], 0)),
        ArrowDown: () => children[at].length && move(children[at][0]),
        ArrowUp: () => at !== top && parent >= 0 && move(parent),
        ArrowRight: () => at !== top && move(beside(at, 1)),
        ArrowLeft: () => at !== top && move(beside(at, -1)),
      }[event.key];
      if (!go) return;
      event.preventDefault();
      go();
    });
    const tip = (event) => {
      const group = event.target.closest("g[data-at]");
      const text = group ? data.tips[group.dataset.at] : event.target.dataset?.tip;
      if (!text) traceana.hideTip();
      else if (event.type === "focusin") traceana.showTipAt(text, group);
      else traceana.showTip(text, event.clientX, event.clientY);
    };
    svg.addEventListener("mousemove", tip);
    svg.addEventListener("focusin", tip);
    svg.addEventListener("mouseleave", traceana.hideTip);
    svg.addEventListener("focusout", traceana.hideTip);
    back.addEventListener("click", () => zoom(Math.max(data.parent[top], 0)));
    fit.addEventListener("click", () => zoom(0));
    let drawnWidth = canvas.clientWidth;
    new ResizeObserver(() => {
      if (canvas.clientWidth === drawnWidth) return; // its height follows from the zoom
      drawnWidth = canvas.clientWidth;
      draw();
    }).observe(canvas);
    draw();

    const legend = traceana.element("ul", { class: "legend" });
    for (const entry of traceana.entries(data.categories.map((name, at) => [data.colours[at], name])))
      legend.append(traceana.element("li", {}, ...entry));
    canvas.after(legend);
    figure.dataset.drawn = "yes";
  };

  document.querySelectorAll("figure.icicle").forEach(show);
};
