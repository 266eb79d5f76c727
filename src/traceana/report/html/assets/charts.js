"use strict";
// Charts: specifications of Vega-Lite, drawn in the page's font and its colours of CSS, or SVG.
traceana.charts = (pictures) => {
  const config = JSON.parse(document.documentElement.dataset.charts);
  config.font = getComputedStyle(document.documentElement).getPropertyValue("--font").trim();
  config.background = null;

  // The mouse shows the values of a mark, which are its label; arrow keys go from mark to mark.
  const MARK = ".role-mark [aria-label]";
  const readable = (canvas) => {
    let at = -1;
    canvas.tabIndex = 0;
    canvas.addEventListener("mousemove", (event) => {
      const mark = event.target.closest(MARK);
      if (mark) traceana.showTip(mark.getAttribute("aria-label"), event.clientX, event.clientY);
      else traceana.hideTip();
    });
    canvas.addEventListener("mouseleave", traceana.hideTip);
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") traceana.hideTip();
      if (!step) return;
      event.preventDefault();
      const found = [...canvas.querySelectorAll(MARK)];
      if (!found.length) return;
      at = (at + step + found.length) % found.length;
      for (const one of found) one.classList.toggle("current", one === found[at]);
      traceana.showTipAt(found[at].getAttribute("aria-label"), found[at]);
    });
    canvas.addEventListener("blur", traceana.hideTip);
  };

  const draw = async (figure) => {
    const canvas = figure.querySelector(".canvas");
    const { specification } = pictures[figure.dataset.picture];
    if (specification)
      await vegaEmbed(canvas, specification, {
        config,
        ast: true, // expressions are interpreted, not compiled: the policy forbids eval
        renderer: "svg",
        actions: false,
        defaultStyle: false,
        tooltip: false,
      });
    // Where Vega fails it logs the error, and draws nothing.
    if (specification && !canvas.querySelector(".role-mark, .role-scope"))
      canvas.textContent = "This chart cannot be drawn: the console of the browser has the error.";
    figure.dataset.drawn = "yes";
  };

  const figures = [...document.querySelectorAll("figure.chart")];
  for (const figure of figures) readable(figure.querySelector(".canvas"));
  return Promise.all(figures.map(draw));
};
