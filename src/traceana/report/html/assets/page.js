"use strict";
// Draws the pictures and makes the tables usable, when the page has been read.
{
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  traceana.palette = JSON.parse(document.documentElement.dataset.palette ?? "[]");
  traceana.tables();
  traceana.icicles(pictures);
  traceana.timelines(pictures);
  const drawn = typeof vegaEmbed === "function" ? traceana.charts(pictures) : Promise.resolve();
  drawn.then(() => (document.documentElement.dataset.ready = "yes"));
}
