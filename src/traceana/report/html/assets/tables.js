"use strict";
// Tables: sorting by a column, a filter of the rows, and the rows as CSV with exact values.
traceana.tables = () => {
  const NARROW = 600; // pixels, as in the style sheet
  // Columns that a narrow screen shows right after the name, and those with a name.
  const FIRST = ["step_ns", "time_ns", "delta_ns", "verdict", "step_share", "share", "of_step"];
  const NAMED = ["layer", "name", "operator", "a", "gemm"];

  // The titles of the columns; above them there may be those of groups.
  const titled = (table) => [...table.tHead.querySelectorAll("th[scope=col]")];

  const exact = (cell) => cell.dataset.v ?? cell.textContent;

  const compare = (numeric) => (a, b) => {
    if (a === b) return 0;
    if (a === "") return 1; // unknown values last
    if (b === "") return -1;
    return numeric ? Number(b) - Number(a) : a.localeCompare(b, "en", { numeric: true });
  };

  const quoted = (text) => {
    // A spreadsheet evaluates what begins like a formula.
    const safe = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  const csv = (table) => {
    const titles = titled(table).map((cell) => cell.dataset.title);
    const lines = [...table.tBodies[0].rows].map((row) =>
      titles.map((_, at) => quoted(exact(row.cells[at]))).join(","),
    );
    return [titles.map(quoted).join(","), ...lines, ""].join("\n");
  };

  const sort = (table, header, at) => {
    const body = table.tBodies[0];
    const numeric = header.classList.contains("n");
    const again = header.getAttribute("aria-sort");
    const reverse = again === (numeric ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [exact(row.cells[at]), row]);
    const order = compare(numeric);
    rows.sort(([a], [b]) => (reverse && a !== "" && b !== "" ? order(b, a) : order(a, b)));
    mark(header, numeric !== reverse ? "descending" : "ascending");
    body.append(...rows.map(([, row]) => row));
  };

  const mark = (header, order) => {
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order);
  };

  // The numbers by which the rows already are in descending order: of several columns, time.
  const ordered = (table) => {
    const rows = [...table.tBodies[0].rows];
    const falls = titled(table).filter((header, at) => {
      if (rows.length < 3 || !header.classList.contains("n")) return false;
      const values = rows.map((row) => exact(row.cells[at]));
      const sorted = values.every((value, one) => !one || compare(true)(values[one - 1], value) <= 0);
      return sorted && values[0] !== values.at(-1);
    });
    const found = falls.find((header) => ["time_ns", "step_ns"].includes(header.dataset.title)) ?? falls[0];
    if (found) mark(found, "descending");
  };

  const filterable = (table, tools) => {
    const body = table.tBodies[0];
    const count = traceana.element("span", { class: "remark", "aria-live": "polite" });
    const input = traceana.element("input", {
      type: "search",
      placeholder: "filter rows",
      "aria-label": "Filter the rows by text",
    });
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      let shown = 0;
      for (const row of body.rows) {
        const text = [...row.cells].map(exact).join(" ") + " " + row.textContent;
        row.hidden = !text.toLowerCase().includes(wanted);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = wanted ? `${shown} of ${body.rows.length} rows` : "";
    });
    const hint = traceana.element("span", { class: "remark" }, "click a title to sort");
    tools.append(input, count, hint);
  };

  const narrowed = (table) => {
    if (table.tHead.rows.length > 1) return; // the columns of a group stay together
    const cells = [...table.tHead.rows[0].cells];
    const moved = FIRST.map((name) => cells.findIndex((cell) => cell.dataset.title === name)).filter((at) => at > 0);
    const named = cells.findIndex((cell) => cell.classList.contains("n"));
    const name = cells.findIndex((cell) => NAMED.includes(cell.dataset.title));
    // What stands beside a name, such as a type, has no room before the figures.
    const after = name >= 0 && name < named ? name : named - 1;
    if (after < 0) return;
    for (const row of table.rows) row.cells[after].after(...moved.map((at) => row.cells[at]));
  };

  // A link to rows of a section filters its table, where it has a filter.
  for (const link of document.querySelectorAll("a[data-rows]")) {
    link.addEventListener("click", () => {
      const input = document.querySelector(`${link.hash} input[type=search]`);
      if (!input) return;
      input.value = link.dataset.rows;
      input.dispatchEvent(new Event("input"));
    });
  }

  for (const table of document.querySelectorAll("table.data")) {
    if (innerWidth <= NARROW) narrowed(table);
    const tools = traceana.element("div", { class: "tools" });
    if (table.tBodies[0].rows.length > 12) filterable(table, tools);
    const button = traceana.element("button", { type: "button" }, "CSV");
    const name = table.closest("section")?.id ?? "table";
    button.setAttribute("aria-label", `Save this table of ${name} as CSV, with exact values`);
    button.addEventListener("click", () =>
      traceana.save(`${name}.csv`, "text/csv", csv(table)),
    );
    tools.append(button);
    if (table.querySelector("td.long")) {
      const whole = traceana.element("button", { type: "button", "aria-pressed": false }, "whole names");
      whole.addEventListener("click", () => {
        const shown = table.classList.toggle("whole");
        whole.setAttribute("aria-pressed", shown);
        for (const cell of table.querySelectorAll("td.long[data-v]")) {
          cell.brief ??= cell.textContent;
          (cell.querySelector("a") ?? cell.firstElementChild).textContent = shown ? cell.dataset.v : cell.brief;
        }
      });
      tools.append(whole);
    }
    const scroll = table.parentElement;
    const holder = traceana.element("div", { class: "holder" });
    scroll.before(holder);
    holder.append(tools, scroll);
    // A lone button needs no line of its own beside a table that leaves room for it.
    const alone = tools.children.length === 1;
    const fit = () => holder.classList.toggle("beside", table.offsetWidth + 80 < holder.clientWidth);
    if (alone) new ResizeObserver(fit).observe(holder);
    ordered(table);
    titled(table).forEach((header, at) => {
      const inside = traceana.element("button", { type: "button", class: "sort" });
      inside.append(...header.childNodes);
      header.append(inside);
      inside.addEventListener("click", () => sort(table, header, at));
    });
  }
};
