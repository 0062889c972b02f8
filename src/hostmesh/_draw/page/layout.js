// The first tab: mesh, global array, what one process passes, in pictures and in words.
"use strict";

const layout = (() => {
  const { el, index } = dom;
  const { product, grouped, counted, repr } = words;
  const SHOWN = 8;

  const dimensions = (made) => made.axes.map((cut, i) => `dim ${i}${cut.length ? ` (${cut.join(", ")})` : ""}`);

  // ---- Pictures

  function meshGrid({ mesh }) {
    const named = mesh.axes.map(([name, size]) => `${name}=${size}`).join(" x ");
    return dom.grid({
      id: "mesh",
      title: `Mesh ${named}`,
      note: sentences.meshNote(mesh),
      names: mesh.axes.map(([name]) => name),
      labels: mesh.sizes.map((size) => Array.from({ length: size }, (_, i) => String(i))),
      cell: (at) => dom.chips([at.reduce((all, i, axis) => all * mesh.sizes[axis] + i, 0)], mesh.owners, "mesh"),
    });
  }

  function arrayGrid({ made, dtype }) {
    return dom.grid({
      id: "array",
      title: `Global array ${dtype.name} ${repr(made.shape)}`,
      note: sentences.arrayNote(made),
      names: dimensions(made),
      labels: made.counts.map((count, i) => Array.from({ length: count }, (_, c) => sentences.place(c, made.shardShape[i]))),
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
    return dom.grid({
      id: "local",
      title: `Process ${process}'s local array: ${dtype.name} ${repr(shape)}`,
      note: `${sentences.localNote(made, process)}; these devices are underlined in all pictures`,
      names: dimensions(made),
      labels: mine.held.map((numbers, i) =>
        numbers.map((number, rank) => sentences.localPlace(rank, number, made.counts[i], made.shardShape[i]))),
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
      made.axes[i].length
        ? [`${numbers.length} of ${counted(made.counts[i], "chunk")} of dimension ${i} (number${numbers.length > 1 ? "s" : ""} ${sentences.listed(numbers)}, counted from 0)`]
        : [],
    );
    const joined = sentences.hasGap(mine.held) ? sentences.JOINED : "joined in this order";
    const said = parts.length
      ? `Process ${process} holds ${parts.join(" and ")}. It passes these as one array of shape ${repr(planning.localShape(made, process))}: ${joined}.`
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
    const size = planning.bytes(made, dtype.itemsize, process);
    const few = (lines, noun) => [...lines.slice(0, SHOWN), ...(lines.length > SHOWN ? [`And ${counted(lines.length - SHOWN, `more ${noun}`)}.`] : [])];
    const passed = few([...shapes].map(([shape, who]) => sentences.passing(shape, who)), "shape");
    const held = few(sentences.sharing(planning.replicaGroups(made)), "group");
    return [
      el("h2", {}, "Numbers"),
      el("p", { id: "bytes" }, `Bytes: ${grouped(size.device)} on each device, ${grouped(size.process)} on process ${process}, ${sentences.onAll(made, size.all)}.`),
      el("p", { id: "jax" }, sentences.jax(mesh)),
      el("ul", { id: "groups" }, [...passed, ...held].map((line) => el("li", {}, line))),
      el("h2", {}, "Code"),
      dom.scrolled("Code", el("pre", { id: "code" }, planning.code(made, processes, order, process).join("\n"))),
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
