"use strict";
// Draws the pictures and makes the tables usable, when the page has been read.
{
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  traceana.tables();
  // A link to a folded section, or to a finding with folded evidence, opens it, and paper shows all
  // sections.
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
  // A link's section begins below the navigation, which may have several lines.
  const nav = document.querySelector("nav");
  const below = () => document.documentElement.style.setProperty("--nav", `${nav.offsetHeight + 4}px`);
  if (nav) new ResizeObserver(below).observe(nav);
  traceana.icicles(pictures);
  traceana.timelines(pictures);
  const charts = () => typeof vegaEmbed === "function" && traceana.charts(pictures);
  // The policy has the hash of the library's script as it is before compression.
  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = traceana.element("script", {}, await new Response(stream).text());
    document.head.append(script);
  };
  const packed = document.getElementById("packed")?.textContent;
  Promise.resolve(packed && unpack(packed))
    .then(charts)
    .then(() => (document.documentElement.dataset.ready = "yes"));
}
