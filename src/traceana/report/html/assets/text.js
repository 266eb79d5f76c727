"use strict";
// What the other scripts share: elements, the tooltip, and files that the page offers.
const traceana = {
  // An element with attributes and children; text is only ever a text node.
  element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  },

  drawn(name, attributes = {}) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  },

  // A legend's entries from colours with a name: one for each colour, with all its names. The box
  // of a colour that is `outlined` has an edge.
  entries(pairs) {
    const named = new Map();
    const edged = new Set();
    for (const [colour, name, outlined] of pairs) {
      named.set(colour, [...(named.get(colour) ?? []), name]);
      if (outlined) edged.add(colour);
    }
    return [...named].map(([colour, names]) => {
      const box = traceana.drawn("svg", { width: 12, height: 12, "aria-hidden": "true" });
      const edge = edged.has(colour) ? { stroke: "currentColor", "stroke-width": 2 } : {};
      box.append(traceana.drawn("rect", { width: 12, height: 12, fill: colour, ...edge }));
      return [box, ` ${names.join(", ")}`];
    });
  },

  // Black or white, whichever has more contrast with a colour #rrggbb (WCAG's relative luminance).
  readable(colour) {
    const [r, g, b] = [1, 3, 5].map((at) => {
      const part = parseInt(colour.slice(at, at + 2), 16) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
  },

  // A duration in nanoseconds with its unit, four significant digits.
  duration(ns) {
    const [factor, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(
      ([size]) => Math.abs(ns) >= size || size === 1,
    );
    const value = ns / factor;
    const digits = unit === "ns" ? 0 : Math.abs(value) < 10 ? 3 : Math.abs(value) < 100 ? 2 : 1;
    return `${value.toFixed(digits)} ${unit}`;
  },

  // A moment of a ruler: without zeros at its end.
  moment(ns) {
    return traceana.duration(ns).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
  },

  showTip(text, x, y) {
    const tip = document.getElementById("tip");
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 4))}px`;
    tip.style.top = `${y + 16 + height > innerHeight ? Math.max(4, y - height - 8) : y + 16}px`;
  },

  showTipAt(text, target) {
    const box = target.getBoundingClientRect();
    traceana.showTip(text, box.left + box.width / 2, box.top + Math.min(box.height, 24));
  },

  hideTip() {
    document.getElementById("tip").hidden = true;
  },

  save(name, type, text) {
    const link = traceana.element("a", { download: name });
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  },
};
