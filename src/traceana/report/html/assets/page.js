"use strict";
// Draws the pictures and makes the tables usable, when the page has been read.
{
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  traceana.tables();
  // A link to a folded section, or to a finding with folded evidence, opens it.
  const unfold = () => {
    const found = document.getElementById(location.hash.slice(1))?.querySelector(":scope > details");
    if (found) found.open = true;
  };
  addEventListener("hashchange", unfold);
  const folded = [...document.querySelectorAll("section > details")];
  // Charts take the width that they have now: a folded one had none.
  for (const one of folded) one.addEventListener("toggle", () => dispatchEvent(new Event("resize")));
  unfold();
  // A link's section begins below the navigation, which may have several lines.
  const nav = document.querySelector("nav");
  const below = () => document.documentElement.style.setProperty("--nav", `${nav.offsetHeight + 4}px`);
  if (nav) new ResizeObserver(below).observe(nav);
  traceana.icicles?.(pictures);
  traceana.timelines?.(pictures);
  // In a notebook, the frame around the page gets its height.
  if (parent !== window) {
    document.documentElement.dataset.framed = "yes";
    const tell = () => parent.postMessage({ traceana: document.documentElement.offsetHeight }, "*");
    new ResizeObserver(tell).observe(document.documentElement);
  }
  traceana.charts(pictures).then(() => (document.documentElement.dataset.ready = "yes"));
}
