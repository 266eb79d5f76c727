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

  // Each of the texts cut in its middle to a number of letters, names differ at either end. Those
  // that would be the same are cut around their first difference, and numbered as a last resort.
  distinct(texts, letters) {
    const head = Math.ceil((letters - 1) / 2);
    const cut = (text) =>
      text.length > letters ? `${text.slice(0, head)}…${text.slice(text.length - (letters - 1 - head))}` : text;
    const shown = new Map([...new Set(texts)].map((text) => [text, cut(text)]));
    const alike = (among) => {
      const groups = new Map();
      for (const text of among) groups.set(shown.get(text), [...(groups.get(shown.get(text)) ?? []), text]);
      return [...groups.values()].filter((group) => group.length > 1);
    };
    const differ = (group) => {
      const [first, last] = [group.toSorted()[0], group.toSorted().at(-1)];
      let at = 0;
      while (at < first.length && first[at] === last[at]) at += 1;
      const kept = Math.max(Math.floor((letters * 2) / 5), 1);
      for (const text of group) {
        const start = Math.max(Math.min(at, text.length - (letters - kept - 1)), kept);
        const rest = `${text.slice(0, kept)}${start > kept ? "…" : ""}${text.slice(start)}`;
        shown.set(text, rest.length > letters ? `${rest.slice(0, letters - 1)}…` : rest);
      }
      for (const smaller of alike(group)) if (smaller.length < group.length) differ(smaller);
    };
    for (const group of alike(shown.keys())) differ(group);
    const used = new Set(shown.values());
    for (const group of alike(shown.keys())) {
      let number = 1;
      for (const text of group.slice(1)) {
        let numbered;
        do {
          const mark = ` #${(number += 1)}`;
          numbered = `${shown.get(text).slice(0, letters - mark.length)}${mark}`;
        } while (used.has(numbered));
        used.add(numbered);
        shown.set(text, numbered);
      }
    }
    return shown;
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
