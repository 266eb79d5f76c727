"use strict";
// Draws the pictures and makes the tables usable, when the page has been read.
{
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  traceana.palette = JSON.parse(document.documentElement.dataset.palette ?? "[]");
  traceana.tables();
  // A link to a folded section opens it, and paper shows all of them.
  const unfold = () => {
    const found = document.getElementById(location.hash.slice(1))?.querySelector(":scope > details");
    if (found) found.open = true;
  };
  addEventListener("hashchange", unfold);
  const folded = [...document.querySelectorAll("section > details")];
  // Charts take the width that they have now: a folded one had none.
  for (const one of folded) one.addEventListener("toggle", () => dispatchEvent(new Event("resize")));
  addEventListener("beforeprint", () => {
    for (const one of folded) one.open = true;
  });
  unfold();
  traceana.icicles(pictures);
  traceana.timelines(pictures);
  const drawn = typeof vegaEmbed === "function" ? traceana.charts(pictures) : Promise.resolve();
  drawn.then(() => (document.documentElement.dataset.ready = "yes"));
}
