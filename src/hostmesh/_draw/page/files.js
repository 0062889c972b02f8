// The third tab: the tensors of a file, each with its spec, shard shape and bytes.
"use strict";

const files = (() => {
  const { el } = dom;
  const { grouped, counted, repr } = words;
  const PAGE = 200;

  // The header alone is read, however large the file is.
  async function read(file) {
    const part = async (start, stop) => new Uint8Array(await file.slice(start, stop).arrayBuffer());
    const length = model.headerLength(await part(0, 8), file.size, file.name);
    const text = new TextDecoder().decode(await part(8, 8 + length));
    return { name: file.name, tensors: model.parseHeader(text, length, file.size, file.name) };
  }

  // A heading that sorts: once its own way, once the other way, then as in the file again.
  const nextSort = (sort, column) =>
    sort.column !== column ? { column, ascending: model.ascends(column) }
    : sort.ascending === model.ascends(column) ? { column, ascending: !sort.ascending }
    : { column: null, ascending: true };

  function heading(column, sort) {
    const order = sort.column !== column ? "none" : sort.ascending ? "ascending" : "descending";
    const sign = el("span", { "aria-hidden": "true" }, { none: " ↕", ascending: " ↑", descending: " ↓" }[order]);
    return el("th", { scope: "col", "aria-sort": order },
      el("button", { type: "button", class: "sort", "data-sort": column, "data-key": `sort-${column}` }, column, sign));
  }

  function render(mesh, found, rules, filter, sort, shown) {
    const parsed = model.parseRules(rules);
    if (!found) return [el("p", {}, "No file yet.")];
    const rows = model.rows(mesh, found.tensors, parsed);
    const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);
    const bad = rows.filter((row) => row.error);
    const whole = sum(found.tensors.map((tensor) => tensor.nbytes));
    const device = sum(rows.map((row) => row.device));
    const wanted = model.chosen(rows, filter, sort.column, sort.ascending);
    const listed = wanted.slice(0, shown);
    return [
      el("h2", {}, found.name),
      el("p", { id: "totals", role: "status" },
        `${counted(rows.length, "tensor")}, ${grouped(whole)} bytes. On each of ${counted(mesh.size, "device")}: ${grouped(device)} bytes;` +
        ` on all: ${grouped(device * mesh.size)}.` + (bad.length ? ` ${counted(bad.length, "tensor")} cannot be cut so, and ${bad.length === 1 ? "is" : "are"} left out.` : "")),
      dom.table(
        "Tensors",
        Object.keys(model.COLUMNS).map((column) => heading(column, sort)),
        listed.map((row) => [
          row.tensor.name,
          row.error ? "-" : grouped(row.device),
          row.shard ? repr(row.shard) : "-",
          repr(row.tensor.shape),
          row.tensor.dtype,
          row.error ? el("div", { class: "wrong", title: row.error }, row.wrong) : row.spec,
          row.rule ? row.rule.pattern : "none",
        ]),
      ),
      wanted.length > listed.length
        ? el("button", { type: "button", id: "more", "data-key": "more" }, `Show ${grouped(Math.min(PAGE, wanted.length - listed.length))} more of ${grouped(wanted.length)}`)
        : null,
    ];
  }

  return { read, render, nextSort, PAGE };
})();
