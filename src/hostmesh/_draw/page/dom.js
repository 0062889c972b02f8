// Making elements, and grids of cells of them: what is too large is abridged as in _picture.py.
"use strict";

const dom = (() => {
  const { product, grouped, counted } = words;
  const LIMITS = { panels: 4, rows: 8, columns: 8, processes: 4, devices: 4 };
  const COLOURS = 8;

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null) made.setAttribute(name, value);
    }
    made.append(...children.flat(Infinity).filter((child) => child !== null));
    return made;
  }

  // New content, with the focus where it was: on the element of the same data-key.
  function fill(parent, ...children) {
    const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null));
    if (key) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  }

  const colour = (process) => `c${process % COLOURS}`;
  const index = (bounds) => (bounds.length ? `[${bounds.map(([a, b]) => `${a}:${b}`).join(", ")}]` : "[()]");

  // All labels, or the first of them, a count, and the last.
  function slots(labels, most) {
    const all = labels.map((label, number) => ({ label, number }));
    if (all.length <= most) return all;
    const first = Math.max(1, most - 2);
    return [...all.slice(0, first), { label: `${grouped(all.length - first - 1)} more`, number: null }, all.at(-1)];
  }

  function chip(process, device, section) {
    return el(
      "button",
      {
        type: "button",
        class: `chip ${colour(process)}`,
        "data-device": device,
        "data-key": `${section}-${device}`,
        "aria-describedby": "detail",
        tabindex: "-1",
      },
      `p${process} d${device}`,
    );
  }

  // The devices of a cell, which hold equal copies: a line for each process. What there is no room
  // for is counted.
  function chips(devices, owners, section) {
    const by = new Map();
    for (const device of devices) {
      if (!by.has(owners[device])) by.set(owners[device], []);
      by.get(owners[device]).push(device);
    }
    const all = [...by.keys()].sort((a, b) => a - b);
    const few = all.length > LIMITS.processes ? all.slice(0, LIMITS.processes - 1) : all;
    const lines = few.map((process, line) => {
      const mine = by.get(process);
      const more = mine.length - LIMITS.devices;
      const shown = mine.slice(0, LIMITS.devices).map((device, k) => [k ? " = " : null, chip(process, device, section)]);
      const held = el("div", {}, shown, more > 0 ? ` +${more}` : null);
      return line ? [el("div", { class: "equal" }, "="), held] : [held];
    });
    const left = all.length - few.length;
    return left ? [...lines, el("div", { class: "more" }, `+${counted(left, "process", "processes")}`)] : lines;
  }

  // A figure: its last two dimensions are rows and columns of tables, those before number the tables.
  // `cell` gives the elements at a place, or null for a hole.
  function grid({ id, title, note, names, labels, cell }) {
    const padding = Math.max(0, 2 - labels.length);
    const [allNames, allLabels] = [[...Array(padding).fill(""), ...names], [...Array(padding).fill([""]), ...labels]];
    const leading = allLabels.slice(0, -2);
    const [rowName, columnName] = allNames.slice(-2);
    const rows = slots(allLabels.at(-2), LIMITS.rows);
    const columns = slots(allLabels.at(-1), LIMITS.columns);
    const sizes = leading.map((part) => part.length);
    const shown = Math.min(product(sizes), LIMITS.panels);
    const panels = Array.from({ length: shown }, (_, k) => {
      const at = planning.digits(k, sizes);
      const heading = at.map((i, d) => `${allNames[d]} ${leading[d][i]}`).join(", ");
      const body = rows.map((row) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, row.label),
          columns.map((column) => {
            if (row.number === null || column.number === null) return el("td", { class: "gap" }, "…");
            const found = cell([...at, row.number, column.number].slice(padding));
            return found ? el("td", {}, found) : el("td", { class: "hole" }, el("span", {}, "hole"));
          }),
        ),
      );
      const head = el(
        "tr",
        {},
        // A label that is empty is no heading.
        el("td"),
        columns.map(({ label }) => el(label ? "th" : "td", label ? { scope: "col" } : {}, label)),
      );
      return el(
        "table",
        { class: "grid" },
        el("caption", { class: heading ? "" : "hidden" }, heading || title),
        el("thead", {}, head),
        el("tbody", {}, body),
      );
    });
    const left = product(sizes) - shown;
    const directions = [rowName && `${rowName} ↓`, columnName && `${columnName} →`].filter(Boolean).join(", ");
    return el(
      "figure",
      { id, "aria-labelledby": `${id}-title` },
      el("figcaption", {}, el("h2", { id: `${id}-title` }, title), el("p", {}, note)),
      directions ? el("p", { class: "directions" }, directions) : null,
      scrolled(`${title}: picture`, panels),
      left ? el("p", {}, `and ${counted(left, "more panel")} like these`) : null,
    );
  }

  // What may be wider than the page: it scrolls by itself, also by keyboard.
  const scrolled = (label, ...inside) =>
    el("div", { class: "scrolled", role: "region", "aria-label": label, tabindex: "0" }, inside);

  function table(label, head, rows) {
    return scrolled(
      label,
      el(
        "table",
        { class: "rows" },
        el("thead", {}, el("tr", {}, head.map((name) => (name instanceof Element ? name : el("th", { scope: "col" }, name))))),
        el("tbody", {}, rows.map((row) => el("tr", {}, row.map((part) => el("td", {}, part))))),
      ),
    );
  }

  return { el, fill, colour, index, chips, grid, scrolled, table };
})();
