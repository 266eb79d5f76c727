"use strict";
// Charts: specifications of Vega-Lite, drawn in the page's font and its colours of CSS.
traceana.charts = (pictures) => {
  const config = JSON.parse(document.documentElement.dataset.charts);
  config.font = getComputedStyle(document.documentElement).getPropertyValue("--font").trim();
  config.background = null;

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
    const result = await vegaEmbed(canvas, pictures[figure.dataset.picture].specification, {
      config,
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
  return Promise.all(figures.map(draw));
};
