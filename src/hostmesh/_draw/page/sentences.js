// What the page says of a layout, each sentence once: those of _words.py, word for word.
// Pure: no document. tests/test_page_planning.py compares every one with Python's.
"use strict";

if (typeof require !== "undefined") {
  globalThis.words = require("./words.js");
  globalThis.planning = require("./planning.js");
}

const sentences = (() => {
  const { product, grouped, counted, repr } = words;
  const JAX = "JAX's own functions (such as host_local_array_to_global_array)";
  const SHOWN = 8;
  const FEW = 4;

  // Ascending numbers in words, with a count of what there is no room for.
  function listed(numbers, most = SHOWN, sign = "") {
    const runs = [];
    for (const number of numbers) {
      if (runs.length && runs.at(-1).at(-1) === number - 1 && !sign) runs.at(-1).push(number);
      else runs.push([number]);
    }
    const parts = runs.flatMap((run) =>
      run.length > 2 ? [[`${run[0]}-${run.at(-1)}`, run.length]] : run.map((number) => [`${sign}${number}`, 1]));
    const shown = parts.slice(0, most).map(([part]) => part);
    const left = parts.slice(most).reduce((all, [, count]) => all + count, 0);
    if (left) shown.push(`${grouped(left)} more`);
    return [shown.slice(0, -1).join(", "), shown.at(-1)].filter(Boolean).join(" and ");
  }

  const copiesOf = (made) => made.mesh.size / made.byChunk.length;

  function meshNote(mesh) {
    const inOrder = mesh.owners.every((process, i) => i === 0 || mesh.owners[i - 1] <= process);
    return (
      `${counted(mesh.size, "device")} of ${counted(mesh.processes.length, "process", "processes")};` +
      ` dN = place N in the mesh, counted row by row${inOrder ? "" : " (not JAX's device id)"}; pN = its process`
    );
  }

  function byCounts(counts) {
    const total = product(counts);
    const sides = counts.length > 1 && total > 1 ? ` (${counts.join(" x ")})` : "";
    return counted(total, "chunk") + sides;
  }

  function arrayNote(made) {
    const parts = made.axes.map((axes, i) =>
      axes.length > 1 ? `; dim ${i} by ${axes[0]}, ${axes.slice(1).map((name) => `each part by ${name}`).join(", ")}` : "");
    const copies = copiesOf(made);
    const held = copies === 1 ? "one device" : `${copies} devices, which hold equal copies`;
    return (
      `cut by ${planning.specWords(made.axes)} in ${byCounts(made.counts)} of shape ${repr(made.shardShape)}` +
      `${parts.join("")}; a chunk is the part of the array that one device stores; each is on ${held}`
    );
  }

  const hasGap = (held) => held.some((numbers) => numbers.at(-1) - numbers[0] >= numbers.length);
  const JOINED = "joined in this order, and those between belong to other processes";

  function localNote(made, process) {
    const mine = planning.share(made, process);
    const holes = planning.missing(made, process).length;
    return (
      "what it passes to hm.to_global, and gets back from hm.to_local, for its" +
      ` ${counted(mine.positions.length, "device")}; labels: place here → place in the global array` +
      (hasGap(mine.held) ? `; its chunks are ${JOINED}` : "") +
      (holes ? `; ${counted(holes, "hatched chunk")} on none of its devices, and not read` : "")
    );
  }

  const place = (number, size) => `${number * size}:${number * size + size}`;
  const localPlace = (rank, number, count, size) =>
    count === 1 ? `${place(0, size)} (all)` : `${place(rank, size)} → ${place(number, size)}`;

  const passing = (shape, processes) =>
    `${processes.length === 1 ? "Process" : "Each of processes"} ${listed(processes)} passes ${shape} to hm.to_global.`;

  function sharing(groups) {
    if (groups.every(({ processes }) => processes.length === 1)) return ["No two processes hold the same chunk."];
    return groups.map(({ processes, chunks }) => {
      if (processes.length === 1) return `Process ${processes[0]} alone holds ${counted(chunks, "chunk")}.`;
      const [same, of] = chunks === 1 ? ["chunk", "it"] : [`${grouped(chunks)} chunks`, "them"];
      return `Processes ${listed(processes)} hold the same ${same}, and must pass equal values of ${of}.`;
    });
  }

  function onAll(made, all) {
    const copies = copiesOf(made);
    const of = copies > 1 ? ` (array ${grouped(all / BigInt(copies))}, ${grouped(copies)} copies)` : "";
    return `${grouped(all)} on all devices${of}`;
  }

  function jax(mesh) {
    const refused = planning.refuses(mesh);
    if (refused === null) return `${JAX} take this mesh too: each process's devices form one rectangle of it.`;
    return (
      `${JAX} need each process's devices to form one rectangle of the mesh; here p${refused} has` +
      ` ${listed(planning.positionsOf(mesh, refused), FEW, "d")}, with a gap. hostmesh takes it.`
    );
  }

  return { listed, meshNote, arrayNote, hasGap, JOINED, localNote, place, localPlace, passing, sharing, onAll, jax };
})();

if (typeof module !== "undefined") module.exports = sentences;
