"use strict";
// The timeline of a step: tracks of events on a canvas, which zooms, moves, searches and selects.
traceana.timelines = (pictures) => {
  const NARROWEST = 90; // pixels of the labels of tracks
  const LINE = 15; // height of one depth of a track
  const GAP = 7;
  const RULER = 22;
  const CHART = 30; // height of a counter
  const DEEPEST = 14; // deeper events are not drawn; the label of the track says so
  const LARGEST_VIEW = 560;
  const NARROW = 560; // pixels of a view where labels have lines of their own

  // The columns of a window, with absolute starts and the rows of events of one track and depth.
  const decode = (window) => {
    const start = new Float64Array(window.start.length);
    let at = 0;
    window.start.forEach((step, index) => (start[index] = at += step));
    const rows = [];
    const tracks = window.tracks.map((track) => ({ ...track, rows: [], hidden: 0 }));
    for (let first = 0; first < start.length; ) {
      const track = window.track[first];
      const depth = window.depth[first];
      let last = first;
      let longest = 0;
      while (last < start.length && window.track[last] === track && window.depth[last] === depth) {
        longest = Math.max(longest, window.time[last]);
        last += 1;
      }
      if (depth < DEEPEST) tracks[track].rows.push({ first, last, depth, longest });
      else tracks[track].hidden += last - first;
      first = last;
    }
    for (const track of tracks) rows.push(...track.rows);
    const counters = window.counters.map((counter) => ({ ...counter }));
    return { ...window, start, tracks, rows, counters };
  };

  // The heights of the tracks, and of the counters below them; `above` is that of a label with a line of its own.
  const place = (data, above) => {
    let y = RULER;
    for (const track of data.tracks) {
      track.y = y;
      y += above;
      const deepest = Math.max(0, ...track.rows.map((row) => row.depth));
      for (const row of track.rows) row.y = y + row.depth * LINE;
      track.height = above + (deepest + 1) * LINE;
      y = track.y + track.height + GAP;
    }
    for (const counter of data.counters) {
      counter.y = y;
      counter.height = above + CHART;
      y += counter.height + GAP;
    }
    data.above = above;
    data.height = y;
  };

  const describe = (data, at) => {
    const count = data.count[at] ?? 1;
    const lines = [
      ["event", count > 1 ? `${count} short events, merged` : data.names[data.name[at]]],
      ["class", data.categories[data.category[at]]],
      ["layer", data.layers[data.layer[at]]],
      ["operator", data.operators[data.operator[at]]],
      ["line", data.lines[data.line[at]]],
      ["track", [data.tracks[data.track[at]].of, data.tracks[data.track[at]].kind].filter(Boolean).join(", ")],
      ["start", `${traceana.duration(data.start[at])} after the start of the step`],
      ["duration", `${traceana.duration(data.time[at])} (${data.time[at].toLocaleString("en")} ns)`],
      ["launched", data.launch[at] === null ? "" : `${traceana.duration(data.launch[at])} before its start`],
    ];
    return lines.filter(([, text]) => text);
  };

  const show = (figure) => {
    const windows = pictures[figure.dataset.picture].windows;
    const decoded = new Map();
    let data;
    let from = 0; // nanoseconds at the left edge
    let to = 1;
    let selected = -1;
    let wanted = "";
    let matches = null; // per text: whether it has the searched words
    let gutter = NARROWEST; // pixels left of the events, for the labels of the tracks

    const brief = figure.classList.contains("strip"); // without tools, details and links to it
    const canvas = figure.querySelector(".canvas");
    const board = traceana.element("canvas");
    const space = traceana.element("div", { class: "space" }, board);
    const scroller = traceana.element("div", { class: "scroller" }, space);
    const details = traceana.element("dl", { class: "details", "aria-live": "polite" });
    canvas.tabIndex = 0;
    canvas.append(scroller);
    const note = traceana.element("p", { class: "remark", "aria-live": "polite" });

    const button = (text, label, action) => {
      const made = traceana.element("button", { type: "button", "aria-label": label }, text);
      made.addEventListener("click", action);
      return made;
    };
    const choice = traceana.element("select", { "aria-label": "Step" });
    windows.forEach((window, at) =>
      choice.append(traceana.element("option", { value: at }, window.step === null ? "capture" : `step ${window.step}`)),
    );
    const search = traceana.element("input", {
      type: "search", placeholder: "search events", "aria-label": "Search events by name, layer, operator or class",
    });
    const tools = traceana.element("div", { class: "tools" },
      ...(windows.length > 1 ? [choice] : []),
      button("+", "Zoom in (W)", () => zoom(0.5)),
      button("−", "Zoom out (S)", () => zoom(2)),
      button("Fit", "Fit the whole step", () => view(0, data.span_ns)),
      search, note,
    );
    if (!brief) {
      canvas.before(tools);
      canvas.after(details);
    }

    const legend = traceana.element("dl", { class: "legend" });
    canvas.after(legend);

    const width = () => Math.max(scroller.clientWidth, gutter + 60);
    const x = (time) => gutter + ((time - from) / (to - from)) * (width() - gutter);
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

    // The first event of a row that may end after `time`; starts are sorted.
    const firstAt = (row, time) => {
      let low = row.first;
      let high = row.last;
      const least = time - row.longest;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (data.start[middle] < least) low = middle + 1;
        else high = middle;
      }
      return low;
    };

    const isMatch = (at) =>
      !matches || matches.names[data.name[at]] || matches.layers[data.layer[at]] ||
      matches.operators[data.operator[at]] || matches.categories[data.category[at]] || matches.lines[data.line[at]];

    const labelled = (track) => [track.of, track.kind].filter(Boolean).join(" ");

    // A label that is too long keeps its beginning and its end: the kind of track is the end.
    const fitted = (pen, text, room) => {
      if (pen.measureText(text).width <= room) return text;
      const kept = Math.floor((room / pen.measureText(text).width) * text.length) - 1;
      const end = Math.ceil(kept * 0.6);
      return `${text.slice(0, Math.max(kept - end, 1))}…${text.slice(text.length - end)}`;
    };

    const resize = (above) => {
      place(data, above);
      scroller.style.height = `${Math.min(data.height, LARGEST_VIEW)}px`;
      space.style.height = `${data.height}px`;
    };

    const draw = () => {
      const ratio = devicePixelRatio || 1;
      const pen = board.getContext("2d");
      const font = `11px ${colour("--font")}`;
      pen.font = font;
      data.longest ??= Math.max(...[...data.tracks, ...data.counters].map((track) => pen.measureText(labelled(track)).width));
      const narrow = scroller.clientWidth < NARROW;
      gutter = narrow ? 2 : Math.min(data.longest + 12, Math.max(NARROWEST, 0.3 * scroller.clientWidth));
      if (data.above !== (narrow ? LINE : 0)) resize(narrow ? LINE : 0);
      const wide = width();
      const high = scroller.clientHeight;
      if (board.width !== Math.round(wide * ratio)) board.width = Math.round(wide * ratio);
      if (board.height !== Math.round(high * ratio)) board.height = Math.round(high * ratio);
      board.style.width = `${wide}px`;
      board.style.height = `${high}px`;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      const ink = colour("--ink");
      const dim = colour("--dim");
      pen.fillStyle = colour("--paper");
      pen.fillRect(0, 0, wide, high);
      pen.font = font;
      pen.textBaseline = "middle";
      const scroll = scroller.scrollTop;
      const perPixel = (to - from) / (wide - gutter);
      pen.save();
      pen.beginPath();
      pen.rect(gutter, RULER, wide - gutter, high - RULER);
      pen.clip();
      for (const row of data.rows) {
        const y = row.y - scroll;
        if (y > high || y + LINE < RULER) continue;
        let drawn = -1;
        for (let at = firstAt(row, from); at < row.last && data.start[at] < to; at += 1) {
          const left = Math.max(x(data.start[at]), gutter - 2);
          const right = Math.min(x(data.start[at] + data.time[at]), wide + 2);
          if (right < gutter || (right <= drawn && at !== selected)) continue;
          const begin = Math.max(left, drawn);
          const size = Math.max(right - begin, 0.6);
          const fill = data.colours[data.category[at]];
          const shown = right - left > 3 ? size - 0.6 : size;
          pen.globalAlpha = isMatch(at) ? 1 : 0.15;
          pen.fillStyle = fill;
          pen.fillRect(begin, y, shown, LINE - 2);
          if (data.outlined[data.category[at]] && shown > 3) {
            pen.strokeStyle = dim;
            pen.lineWidth = 1;
            pen.strokeRect(begin + 0.5, y + 0.5, shown - 1, LINE - 3);
          }
          if (right - left > 34) {
            pen.fillStyle = traceana.readable(fill);
            const letters = Math.floor((right - left - 6) / 6);
            const name = (data.count[at] ?? 1) > 1 ? `${data.count[at]} merged` : data.names[data.name[at]];
            pen.fillText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, left + 3, y + LINE / 2 - 1);
          }
          drawn = begin + size;
        }
      }
      for (const counter of data.counters) chart(pen, counter, scroll, high, wide);
      pen.globalAlpha = 1;
      if (selected >= 0) outline(pen, scroll, ink);
      pen.restore();
      labels(pen, scroll, high, ink, dim);
      ruler(pen, wide, ink, dim, perPixel);
    };

    // The mean of each part of the time as an area from 0, from its least to its largest value paler.
    const chart = (pen, counter, scroll, high, wide) => {
      const base = counter.y - scroll + counter.height;
      if (base < RULER || base - CHART > high) return;
      const level = (value) => base - ((value - counter.low) / (counter.high - counter.low || 1)) * CHART;
      pen.fillStyle = colour("--bar");
      for (let at = 0; at < counter.start.length; at += 1) {
        const left = Math.max(x(counter.start[at]), gutter);
        const size = Math.max(Math.min(x(counter.start[at] + counter.time[at]), wide) - left, 0.6);
        if (left > wide || x(counter.start[at] + counter.time[at]) < gutter) continue;
        pen.globalAlpha = 0.35;
        pen.fillRect(left, level(counter.max[at]), size, Math.max(level(counter.min[at]) - level(counter.max[at]), 0.6));
        pen.globalAlpha = 0.75;
        pen.fillRect(left, Math.min(level(counter.mean[at]), level(0)), size, Math.abs(level(counter.mean[at]) - level(0)));
      }
    };

    const rowOf = (at) => data.rows.find((row) => row.first <= at && at < row.last);

    const outline = (pen, scroll, ink) => {
      const row = rowOf(selected);
      if (!row) return;
      const left = x(data.start[selected]);
      const size = Math.max(x(data.start[selected] + data.time[selected]) - left, 1);
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(left, row.y - scroll, size, LINE - 2);
      const launch = data.launch[selected];
      if (launch === null) return;
      const called = data.start[selected] - launch;
      const call = data.rows.find(
        (one) => data.tracks[data.track[one.first]].kind === "runtime calls" && has(one, called),
      );
      pen.beginPath();
      pen.moveTo(left, row.y - scroll + (LINE - 2) / 2);
      pen.lineTo(x(called), call ? call.y - scroll + (LINE - 2) / 2 : row.y - scroll + LINE);
      pen.lineWidth = 1;
      pen.stroke();
    };

    const has = (row, time) => {
      for (let at = firstAt(row, time); at < row.last && data.start[at] <= time; at += 1)
        if (data.start[at] === time) return true;
      return false;
    };

    const written = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });

    const labels = (pen, scroll, high, ink, dim) => {
      pen.save();
      pen.beginPath();
      const room = data.above ? width() : gutter - 6;
      pen.rect(0, RULER, room, high - RULER);
      pen.clip();
      for (const track of data.tracks) {
        const y = track.y - scroll;
        if (y > high || y + track.height < RULER) continue;
        pen.fillStyle = ink;
        const label = fitted(pen, labelled(track), room - 4);
        pen.fillText(label, 2, y + LINE / 2 - 1);
        if (!track.hidden) continue;
        pen.fillStyle = dim;
        const [left, top] = data.above ? [pen.measureText(label).width + 10, y] : [2, y + LINE];
        pen.fillText(`${track.hidden} deeper events`, left, top + LINE / 2 - 1);
      }
      for (const counter of data.counters) {
        const y = counter.y - scroll;
        if (y > high || y + counter.height < RULER) continue;
        pen.fillStyle = ink;
        const label = fitted(pen, labelled(counter), room - 4);
        pen.fillText(label, 2, y + LINE / 2 - 1);
        pen.fillStyle = dim;
        const [left, top] = data.above ? [pen.measureText(label).width + 10, y] : [2, y + LINE];
        pen.fillText(`${written(counter.low)} to ${written(counter.high)}`, left, top + LINE / 2 - 1);
      }
      pen.restore();
    };

    const ruler = (pen, wide, ink, dim, perPixel) => {
      pen.fillStyle = colour("--soft");
      pen.fillRect(0, 0, wide, RULER - 2);
      const rough = perPixel * 110;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
      pen.fillStyle = dim;
      let free = 0;
      for (let time = Math.ceil(from / step) * step; time < to; time += step) {
        const label = traceana.moment(Math.round(time));
        const left = x(time) + 3;
        const right = left + pen.measureText(label).width;
        // A tick whose label is cut by the edge or by the label before it is left out.
        if (left < free || right > wide) continue;
        pen.fillRect(x(time), RULER - 7, 1, 5);
        pen.fillText(label, left, RULER / 2 - 2);
        free = right + 6;
      }
    };

    let pending = 0;
    const redraw = () => {
      if (!pending) pending = requestAnimationFrame(() => ((pending = 0), draw()));
    };

    const view = (begin, end) => {
      const least = 100; // nanoseconds
      const span = Math.min(Math.max(end - begin, least), data.span_ns);
      from = Math.min(Math.max(begin, 0), data.span_ns - span);
      to = from + span;
      figure.dataset.view = `${Math.round(from)} ${Math.round(to)}`;
      redraw();
    };

    const zoom = (factor, around = (from + to) / 2) =>
      view(around - (around - from) * factor, around + (to - around) * factor);

    const select = (at, reveal) => {
      selected = at;
      details.replaceChildren();
      figure.dataset.selected = at < 0 ? "" : data.names[data.name[at]];
      if (at >= 0) {
        for (const [label, text] of describe(data, at))
          details.append(traceana.element("dt", {}, label), traceana.element("dd", {}, label === "line" ? toLine(text) : text));
        if (reveal) {
          const middle = data.start[at] + data.time[at] / 2;
          if (data.start[at] < from || data.start[at] + data.time[at] > to) {
            const half = Math.max((to - from) / 2, data.time[at]);
            view(middle - half, middle + half);
          }
          const y = rowOf(at)?.y ?? 0;
          if (y < scroller.scrollTop + RULER || y + LINE > scroller.scrollTop + scroller.clientHeight)
            scroller.scrollTop = y - scroller.clientHeight / 2;
        }
      }
      redraw();
    };

    // A line of the program, as a link to its row in the listing of its file.
    const toLine = (line) => {
      const row = document.querySelector(`#source tr[data-line="${CSS.escape(line)}"]`);
      if (!row) return line;
      const inside = traceana.element("a", { href: "#source" }, line);
      inside.addEventListener("click", (event) => {
        event.preventDefault();
        for (const other of document.querySelectorAll("tr.marked")) other.classList.remove("marked");
        row.classList.add("marked");
        row.scrollIntoView({ block: "center" });
      });
      return inside;
    };

    const at = (event) => {
      const box = board.getBoundingClientRect();
      const y = event.clientY - box.top + scroller.scrollTop;
      const time = from + ((event.clientX - box.left - gutter) / (width() - gutter)) * (to - from);
      if (event.clientX - box.left < gutter) return -1;
      const slack = ((to - from) / (width() - gutter)) * 2;
      const row = data.rows.find((one) => y >= one.y && y < one.y + LINE);
      if (!row) return -1;
      let best = -1;
      for (let one = firstAt(row, time - slack); one < row.last && data.start[one] <= time + slack; one += 1)
        if (data.start[one] + data.time[one] >= time - slack) best = one;
      return best;
    };

    // What a counter had at a place, as lines of a tip; empty elsewhere.
    const sampleAt = (event) => {
      const box = board.getBoundingClientRect();
      const y = event.clientY - box.top + scroller.scrollTop;
      const counter = data.counters.find((one) => y >= one.y && y < one.y + one.height);
      if (!counter || event.clientX - box.left < gutter) return [];
      const time = from + ((event.clientX - box.left - gutter) / (width() - gutter)) * (to - from);
      const part = counter.start.findLastIndex((start, one) => start <= time && time < start + counter.time[one]);
      if (part < 0) return [];
      const [least, mean, most] = [counter.min, counter.mean, counter.max].map((values) => written(values[part]));
      const range = least === most ? [] : [["range", `${least} to ${most}`]];
      return [["counter", labelled(counter)], ["mean", mean], ...range,
        ["start", `${traceana.duration(counter.start[part])} after the start of the step`],
        ["duration", traceana.duration(counter.time[part])]];
    };

    const nearest = (row, time) => {
      let best = row.first;
      for (let one = row.first; one < row.last; one += 1)
        if (Math.abs(data.start[one] - time) < Math.abs(data.start[best] - time)) best = one;
      return best;
    };

    const move = (rows, events) => {
      if (selected < 0) {
        const row = data.rows[0];
        return row ? select(Math.min(firstAt(row, from), row.last - 1), true) : undefined;
      }
      const row = rowOf(selected);
      if (events) return select(Math.min(Math.max(selected + events, row.first), row.last - 1), true);
      const other = data.rows[data.rows.indexOf(row) + rows];
      return other && select(nearest(other, data.start[selected]), true);
    };

    const find = (words) => {
      wanted = words.trim().toLowerCase();
      // A line of the program is meant as a whole: "train.py:4" is not "train.py:41".
      const whole = data.lines.some((line) => line.toLowerCase() === wanted);
      const has = (text) => (whole ? text === wanted : text.includes(wanted));
      const test = (texts) => texts.map((text) => has(text.toLowerCase()));
      matches = wanted
        ? {
            names: test(data.names), layers: test(data.layers), operators: test(data.operators),
            categories: test(data.categories), lines: test(data.lines),
          }
        : null;
      let count = 0;
      if (matches) for (let one = 0; one < data.start.length; one += 1) count += isMatch(one) ? 1 : 0;
      note.textContent = matches ? `${count.toLocaleString("en")} of ${data.start.length.toLocaleString("en")} events` : remark();
      redraw();
    };

    const next = () => {
      if (!matches) return;
      const order = [...data.start.keys()];
      for (let step = 1; step <= order.length; step += 1) {
        const one = (Math.max(selected, -1) + step) % order.length;
        if (isMatch(one)) return select(one, true);
      }
    };

    const remark = () => {
      const parts = [`${data.start.length.toLocaleString("en")} events`];
      if (data.merged) parts.push(`${data.merged.toLocaleString("en")} short ones merged`);
      if (data.left_out) parts.push(`${data.left_out} tracks left out`);
      return parts.join(", ");
    };

    const open = (number) => {
      if (!decoded.has(number)) decoded.set(number, decode(windows[number]));
      data = decoded.get(number);
      resize(data.above ?? 0);
      selected = -1;
      details.replaceChildren();
      view(0, data.span_ns);
      find(wanted);
      explain();
    };

    // The classes of a window's events with their colours, those with most time first.
    const explain = () => {
      const total = data.categories.map(() => 0);
      data.category.forEach((category, one) => (total[category] += data.time[one]));
      const named = [...total.keys()].filter((category) => data.categories[category]);
      named.sort((a, b) => total[b] - total[a]);
      const groups = { "critical path": [], idle: [], class: [] };
      for (const category of named) {
        const text = data.categories[category];
        const of = { critical: "critical path", idle: "idle" }[text.split(": ", 1)[0]] ?? "class";
        const label = of === "class" ? text : text.slice(text.indexOf(": ") + 2);
        groups[of].push([data.colours[category], label, data.outlined[category]]);
      }
      legend.replaceChildren();
      for (const [of, pairs] of Object.entries(groups)) {
        if (!pairs.length) continue;
        const entries = traceana.entries(pairs).map((entry) => traceana.element("span", {}, ...entry));
        legend.append(traceana.element("dt", {}, of), traceana.element("dd", {}, ...entries));
      }
    };

    // The function from a row of a table of lines to the name of its line; undefined for others.
    const lineOf = (table, titles) => {
      const [file, line] = [titles.indexOf("file"), titles.indexOf("line")];
      if (line < 0) return undefined;
      const text = (cell) => cell.dataset.v ?? cell.textContent;
      if (file >= 0) return (row) => `${text(row.cells[file])}:${text(row.cells[line])}`;
      let before = table.closest(".holder") ?? table.closest(".scroll");
      while (before && before.tagName !== "H3") before = before.previousElementSibling;
      if (!before || !table.closest("#source")) return undefined;
      return (row) => `${before.firstChild.textContent.trim()}:${text(row.cells[line])}`;
    };

    // A name in a table that events of the step have, too, is a link to the first of them.
    const link = () => {
      const texts = { name: data.names, layer: data.layers, operator: data.operators };
      for (const table of document.querySelectorAll("table.data")) {
        const titles = [...table.tHead.querySelectorAll("th[scope=col]")].map((cell) => cell.dataset.title);
        const lines = lineOf(table, titles);
        const at = lines ? titles.indexOf("line") : titles.findIndex((title) => title in texts);
        if (at < 0) continue;
        const known = new Set(lines ? data.lines : texts[titles[at]]);
        for (const row of table.tBodies[0].rows) {
          const cell = row.cells[at];
          if (lines) row.dataset.line = lines(row);
          // A kernel's exact name is longer than that of its events; the end of a long one is cut.
          const exact = titles[at] === "name" ? cell.textContent : cell.dataset.v ?? cell.textContent;
          const shown = lines ? row.dataset.line : exact;
          const start = shown.endsWith("…") && shown.slice(0, -1);
          const text = known.has(shown) ? shown : start && texts.name.find((one) => one.startsWith(start));
          if (!text) continue;
          const inside = traceana.element("a", { class: "event", href: "#timeline", title: "show in the timeline" });
          const holder = cell.querySelector("div") ?? cell;
          inside.append(...holder.childNodes);
          holder.append(inside);
          inside.addEventListener("click", () => {
            search.value = text;
            find(text);
            selected = -1;
            next();
          });
        }
      }
    };

    choice.addEventListener("change", () => open(Number(choice.value)));
    search.addEventListener("input", () => find(search.value));
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") next();
    });
    scroller.addEventListener("scroll", redraw);
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const span = to - from;
      const go = {
        ArrowRight: () => move(0, 1), ArrowLeft: () => move(0, -1),
        ArrowDown: () => move(1, 0), ArrowUp: () => move(-1, 0),
        w: () => zoom(0.7), s: () => zoom(1 / 0.7), "+": () => zoom(0.5), "-": () => zoom(2),
        a: () => view(from - span / 5, to - span / 5), d: () => view(from + span / 5, to + span / 5),
        Home: () => view(0, data.span_ns), Escape: () => select(-1),
        Enter: () => selected >= 0 && view(data.start[selected] - data.time[selected], data.start[selected] + 2 * data.time[selected]),
      }[event.key];
      if (!go) return;
      event.preventDefault();
      go();
    });

    let held = null;
    board.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from, to, moved: false };
      board.setPointerCapture(event.pointerId);
    });
    board.addEventListener("pointermove", (event) => {
      if (held) {
        const by = ((held.x - event.clientX) / (width() - gutter)) * (held.to - held.from);
        held.moved ||= Math.abs(held.x - event.clientX) > 3;
        if (held.moved) view(held.from + by, held.to + by);
        return;
      }
      const one = at(event);
      const lines = one < 0 ? sampleAt(event) : describe(data, one);
      if (!lines.length) traceana.hideTip();
      else traceana.showTip(lines.map(([label, text]) => `${label}: ${text}`).join("\n"), event.clientX, event.clientY);
    });
    board.addEventListener("pointerup", (event) => {
      if (held && !held.moved) select(at(event));
      held = null;
    });
    board.addEventListener("pointerleave", traceana.hideTip);
    board.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return; // the page and the tracks scroll
      event.preventDefault();
      const box = board.getBoundingClientRect();
      const around = from + ((event.clientX - box.left - gutter) / (width() - gutter)) * (to - from);
      zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, around);
    }, { passive: false });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new ResizeObserver(redraw).observe(scroller);

    open(0);
    if (!brief) link();
    draw();
    figure.dataset.drawn = "yes";
  };

  document.querySelectorAll("figure.timeline, figure.strip").forEach(show);
};
