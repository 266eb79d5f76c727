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
