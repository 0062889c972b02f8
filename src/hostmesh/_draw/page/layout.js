// The first tab: mesh, global array, what one process passes, in pictures and in words.
"use strict";

const layout = (() => {
  const { el, index } = dom;
  const { product, grouped, counted, repr } = words;
  const SHOWN = 8;

  function abridged(processes) {
    const more = processes.length > SHOWN ? ` and ${grouped(processes.length - SHOWN)} more` : "";
    return `${processes.length === 1 ? "process" : "processes"} ${processes.slice(0, SHOWN).join(" ")}${more}`;
  }

  const places = (count, size) => Array.from({ length: count }, (_, c) => `${c * size}:${c * size + size}`);
  const dimensions = (made) => made.axes.map((cut, i) => `dim ${i}${cut.length ? ` (${cut.join(", ")})` : ""}`);

  function byCounts(counts) {
    const total = product(counts);
    const sides = counts.length > 1 && total > 1 ? ` (${counts.join(" x ")})` : "";
    return counted(total, "chunk") + sides;
  }

  // ---- Pictures

  function meshGrid({ mesh }) {
    const named = mesh.axes.map(([name, size]) => `${name}=${size}`).join(" x ");
    return dom.grid({
      id: "mesh",
      title: `Mesh ${named}`,
      note:
        `${counted(mesh.size, "device")} of ${counted(mesh.processes.length, "process", "processes")};` +
        " dN is the device at place N of the mesh, pN its process",
      names: mesh.axes.map(([name]) => name),
      labels: mesh.sizes.map((size) => Array.from({ length: size }, (_, i) => String(i))),
      cell: (at) => dom.chips([at.reduce((all, i, axis) => all * mesh.sizes[axis] + i, 0)], mesh.owners, "mesh"),
    });
  }

  function arrayGrid({ made, dtype }) {
    const copies = made.mesh.size / made.byChunk.length;
    const held = copies === 1 ? "one device" : `${copies} devices, which hold equal copies`;
    return dom.grid({
      id: "array",
      title: `Global array ${dtype.name} ${repr(made.shape)}`,
      note:
        `cut by ${planning.specWords(made.axes)} in ${byCounts(made.counts)} of shape` +
        ` ${repr(made.shardShape)}; each chunk is on ${held}`,
      names: dimensions(made),
      labels: made.counts.map((count, i) => places(count, made.shardShape[i])),
      cell: (chunk) => dom.chips(made.byChunk[made.flat(chunk)], made.mesh.owners, "array"),
    });
  }

  function localGrid({ made, dtype, process }) {
    const mine = planning.share(made, process);
    const shape = planning.localShape(made, process);
    if (!shape) return el("p", {}, `Process ${process} has no device in the mesh: it passes nothing.`);
    const by = new Map();
    mine.chunks.forEach((chunk, k) => {
      const key = made.flat(chunk);
      by.set(key, [...(by.get(key) || []), mine.positions[k]]);
    });
    const holes = planning.missing(made, process).length;
    const hatched = holes ? `; ${counted(holes, "hatched chunk")} on none of its devices, and not read` : "";
    return dom.grid({
      id: "local",
      title: `Process ${process} passes and gets back ${dtype.name} ${repr(shape)}`,
      note:
        `for its ${counted(mine.positions.length, "device")}, underlined in all pictures; place here = place in the global array` + hatched,
      names: dimensions(made),
      labels: mine.held.map((numbers, i) => {
        const size = made.shardShape[i];
        return places(numbers.length, size).map((here, r) => `${here} = ${places(made.counts[i], size)[numbers[r]]}`);
      }),
      cell: (at) => {
        const found = by.get(made.flat(at.map((r, i) => mine.held[i][r])));
        return found ? dom.chips(found, made.mesh.owners, "local") : null;
      },
    });
  }

  // ---- In words

  function ordered({ mesh, order, processes }) {
    if (order === "block") {
      return `Order block: each process has ${counted(mesh.size / processes, "device")} in a row, so dN is of p(N / ${mesh.size / processes}, rounded down).`;
    }
    if (order === "interleaved") {
      return `Order interleaved: devices are dealt out in turn like cards, so dN is of p(N mod ${processes}).`;
    }
    return "Order: the list says the process of each device, row by row through the mesh.";
  }

  function cutWords(made, i) {
    const [cut, n, size] = [made.axes[i], made.counts[i], made.shape[i]];
    if (!cut.length) return `Dimension ${i} (${grouped(size)}) is not cut.`;
    const sizes = cut.map((name) => made.mesh.sizes[made.mesh.axes.findIndex(([other]) => other === name)]);
    const chunks = `${counted(n, "chunk")} of ${grouped(made.shardShape[i])}`;
    if (cut.length === 1) return `Dimension ${i} (${grouped(size)}) is cut by ${cut[0]} in ${chunks}: chunk number = place along ${cut[0]}.`;
    const terms = cut.map((name, k) => {
      const step = product(sizes.slice(k + 1));
      return step === 1 ? name : `${step} x ${name}`;
    });
    return (
      `Dimension ${i} (${grouped(size)}) is cut by ${cut.join(", then each part by ")}, in` +
      ` ${sizes.join(" x ")} = ${chunks}: chunk number = ${terms.join(" + ")}.`
    );
  }

  function copyWords(made) {
    const used = made.axes.flat();
    const free = made.mesh.axes.filter(([name, size]) => !used.includes(name) && size > 1);
    if (!free.length) return "Every mesh axis cuts: each chunk is on one device alone.";
    const names = free.map(([name]) => name).join(" and ");
    return `${names} cuts nothing: the ${made.mesh.size / made.byChunk.length} devices along it hold equal copies.`;
  }

  function localWords({ made, process }) {
    const mine = planning.share(made, process);
    if (!mine.positions.length) return [];
    const parts = mine.held.flatMap((numbers, i) =>
      made.axes[i].length ? [`${numbers.length} of ${made.counts[i]} chunks of dimension ${i} (number ${numbers.slice(0, SHOWN).join(", ")}${numbers.length > SHOWN ? ", ..." : ""})`] : [],
    );
    const said = parts.length
      ? `Process ${process} holds ${parts.join(" and ")}. It passes these joined in one array of shape ${repr(planning.localShape(made, process))}.`
      : `Process ${process} holds the whole array, and passes it.`;
    const holes = planning.missing(made, process);
    if (!holes.length) return [said];
    return [
      said,
      `Its devices lack ${counted(holes.length, "chunk")} of that block: to_global does not read them,` +
        " and to_local refuses unless told fetch_missing=True.",
    ];
  }

  const explained = (context) => {
    const { made } = context;
    const lines = [ordered(context), ...made.shape.map((_, i) => cutWords(made, i)), copyWords(made), ...localWords(context)];
    return el("section", { "aria-labelledby": "words-title" }, el("h2", { id: "words-title" }, "In words"), el("ul", { id: "words" }, lines.map((line) => el("li", {}, line))));
  };

  // ---- Numbers

  function numbers({ made, mesh, dtype, process, processes, order }) {
    const shapes = new Map();
    for (const one of mesh.processes) {
      const key = repr(planning.localShape(made, one));
      shapes.set(key, [...(shapes.get(key) || []), one]);
    }
    const shapeRows = [...shapes].map(([shape, who]) => [shape, abridged(who)]);
    const groups = planning.replicaGroups(made).map((group) => [abridged(group.processes), counted(group.chunks, "chunk")]);
    const size = planning.bytes(made, dtype.itemsize, process);
    const refused = planning.refuses(mesh);
    const few = (rows, noun) => [...rows.slice(0, SHOWN), ...(rows.length > SHOWN ? [[`and ${grouped(rows.length - SHOWN)} more ${noun}`, ""]] : [])];
    return [
      el("h2", {}, "Numbers"),
      el("p", { id: "bytes" }, `Bytes: ${grouped(size.device)} a device, ${grouped(size.process)} on process ${process}, ${grouped(size.all)} in all.`),
      el(
        "p",
        { id: "jax" },
        refused === null
          ? "JAX's own functions take this mesh: each process has a contiguous subcube."
          : `JAX's own functions refuse this mesh: the devices of process ${refused} are no contiguous subcube. hostmesh takes it.`,
      ),
      el("div", { class: "tables", id: "groups" },
        dom.table("What each process passes", ["Passes", "Who"], few(shapeRows, "shapes")),
        dom.table("Replica groups", ["Hold the same chunks (replica group)", "How many"], few(groups, "groups"))),
      el("h2", {}, "Code"),
      dom.scrolled("Code", el("pre", { id: "code" }, planning.code(made, processes, order).join("\n"))),
      el("p", {}, el("button", { type: "button", "data-copy": "code", "data-key": "copy-code" }, "Copy code")),
    ];
  }

  // ---- One device, as it is pointed at or reached by keyboard

  function detail({ made, mesh, dtype }, device) {
    const owner = mesh.owners[device];
    const at = planning.placements(made, owner).find((each) => each.device === device);
    const place = planning.digits(device, mesh.sizes).map((i, axis) => `${mesh.axes[axis][0]}=${i}`).join(", ");
    const twins = made.byChunk[made.flat(at.chunk)].filter((other) => other !== device);
    const also = twins.length
      ? `Equal copies on ${twins.slice(0, SHOWN).map((d) => `d${d} (p${mesh.owners[d]})`).join(", ")}${twins.length > SHOWN ? ` and ${twins.length - SHOWN} more` : ""}.`
      : "No other device holds it.";
    return [
      el("strong", {}, `Device ${device} of process ${owner}`),
      ` at ${place}: x${index(at.global)} of the global array, local${index(at.local)} of what process ${owner} passes. `,
      `Chunk ${repr(at.chunk)}, ${grouped(planning.bytes(made, dtype.itemsize, owner).device)} bytes. ${also}`,
    ];
  }

  function render(context) {
    const hint = "Point at a device, or reach it with Tab and the arrow keys, to see its slice. Press it to show its process.";
    return [
      explained(context),
      el("div", { class: "figures" }, meshGrid(context), arrayGrid(context), localGrid(context)),
      numbers(context),
      el("p", { id: "detail", "aria-live": "polite" }, hint),
    ];
  }

  return { render, detail };
})();
