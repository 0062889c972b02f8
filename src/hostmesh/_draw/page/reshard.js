// The second tab: from one spec to another, a round of blocks at a time.
"use strict";

const reshard = (() => {
  const { el, index } = dom;
  const { product, grouped, counted } = words;
  const MOST_DEVICES = 512; // blocks are listed one by one
  const MOST_CELLS = 256;
  const MOST_MAPS = 16;
  const LISTED = 12;
  const LINKS = 8;

  // Everything about one change of layout; `step` 0 is before, the last one after.
  function planned(old, made, itemsize, hostOf) {
    const found = moves.blocks(old, made);
    const rounds = moves.rounds(found, old.mesh.processes);
    const edges = old.shape.map((size, i) => {
      const cuts = new Set([size]);
      for (const shard of [old.shardShape[i], made.shardShape[i]]) {
        for (let at = 0; at < size; at += shard) cuts.add(at);
      }
      return [...cuts].sort((a, b) => a - b);
    });
    return { old, made, found, rounds, edges, itemsize, hostOf, last: rounds.length + 1 };
  }

  const size = (plan, blocks) => blocks.reduce((all, block) => all + block.elements, 0) * plan.itemsize;

  // ---- A map of the array for each process: what it has, what it waits for, what comes

  function map(plan, process, step) {
    const counts = plan.edges.map((edge) => Math.max(1, edge.length - 1));
    const columns = counts.at(-1) ?? 1;
    const arrivals = new Map();
    plan.rounds.forEach(({ blocks }, k) =>
      blocks.filter((block) => block.receiver === process).forEach((block) => arrivals.set(index(block.box), { from: block.sender, at: k + 1 })));
    const [before, after] = [plan.old, plan.made].map((made) => new Set(planning.share(made, process).distinct));
    const cells = Array.from({ length: product(counts) }, (_, number) => {
      const box = planning.digits(number, counts).map((k, i) => [plan.edges[i][k], plan.edges[i][k + 1]]);
      const chunkIn = (made) => made.flat(box.map(([a], i) => Math.floor(a / made.shardShape[i])));
      return { box, ...look(plan, process, step, before.has(chunkIn(plan.old)), after.has(chunkIn(plan.made)), arrivals.get(index(box))) };
    });
    const side = (i, k) => `${plan.edges[i][k]}:${plan.edges[i][k + 1]}`;
    const rank = counts.length;
    const head = rank
      ? el("thead", {}, el("tr", {}, el("td"), Array.from({ length: columns }, (_, k) => el("th", { scope: "col" }, side(rank - 1, k)))))
      : null;
    const rowLabel = (r) => planning.digits(r, counts.slice(0, -1)).map((k, i) => side(i, k)).join(", ");
    const rows = Array.from({ length: cells.length / columns }, (_, r) =>
      el("tr", {}, rowLabel(r) ? el("th", { scope: "row" }, rowLabel(r)) : el("td", { class: "none" }), cells.slice(r * columns, (r + 1) * columns).map(({ box, name, text }) =>
        el("td", { class: name, title: `x${index(box)}` }, text))));
    const parts = [el("caption", {}, `process ${process}`), head, el("tbody", {}, rows)];
    return el("table", { class: "map" }, parts);
  }

  function look(plan, process, step, had, needs, arrival) {
    if (had && (step < plan.last || needs)) return { name: `own ${dom.colour(process)}`, text: `p${process}` };
    if (!needs) return { name: "none", text: "·" };
    if (!arrival || arrival.at > step) return { name: "awaited", text: "?" };
    return { name: `${arrival.at === step ? "arrives" : "own"} ${dom.colour(arrival.from)}`, text: `←p${arrival.from}` };
  }

  function maps(plan, step) {
    const { processes } = plan.old.mesh;
    const cells = product(plan.edges.map((edge) => Math.max(1, edge.length - 1)));
    if (cells > MOST_CELLS || processes.length > MOST_MAPS || plan.old.shape.includes(0)) {
      return el("p", {}, `No picture of ${counted(cells, "block")} on ${counted(processes.length, "process", "processes")}: the list tells.`);
    }
    return el("div", { class: "maps" }, processes.map((process) => map(plan, process, step)));
  }

  // ---- The step in words

  function heading(plan, step) {
    const total = plan.rounds.length;
    if (step === 0) return `Before: ${planning.specWords(plan.old.axes)}. A ? is awaited.`;
    if (step === plan.last) return `After: ${planning.specWords(plan.made.axes)}. What is not needed is dropped.`;
    const { blocks } = plan.rounds[step - 1];
    const links = [...new Set(blocks.map((block) => `p${block.sender} → p${block.receiver}`))];
    const more = links.length > LINKS ? ` and ${links.length - LINKS} more` : "";
    return `Round ${step} of ${total}: ${links.slice(0, LINKS).join(", ")}${more}. ${counted(blocks.length, "block")}, ${grouped(size(plan, blocks))} bytes.`;
  }

  function listing(plan, step) {
    const blocks = step > 0 && step < plan.last ? plan.rounds[step - 1].blocks : [];
    const lines = blocks.slice(0, LISTED).map((block) =>
      el("li", {}, `process ${block.sender} sends x${index(block.box)} to process ${block.receiver} (${grouped(size(plan, [block]))} bytes)`));
    const more = blocks.length - LISTED;
    return el("ul", { id: "sent" }, lines, more > 0 ? el("li", {}, `and ${counted(more, "more block")}`) : null);
  }

  function hostWords(plan, travel) {
    const { host, far } = moves.sent(travel, plan.hostOf);
    return `Of these, ${grouped(host * plan.itemsize)} bytes stay within a host and ${grouped(far * plan.itemsize)} go between hosts.`;
  }

  // The least that must move, device by device, as `hostmesh plan --reshard` counts it.
  function nearest(plan) {
    const found = moves.needs(plan.old, plan.made, plan.hostOf);
    const places = [["on the device already", "own"], ["on another device of its process", "process"]];
    places.push(...(plan.hostOf ? [["in another process of its host", "host"], ["on another host", "far"]] : [["in another process", "far"]]));
    return [
      el("h2", {}, "Where the nearest copy lies"),
      el("p", { class: "hint" }, "Of all that devices need, each device counted by itself."),
      el("div", { id: "nearest" }, dom.table("Where the nearest copy lies", ["Nearest copy", "Bytes"],
        places.map(([words, key]) => [words, grouped(found[key] * plan.itemsize)]))),
    ];
  }

  function totals(plan) {
    const travel = plan.found.filter((block) => block.sender !== block.receiver);
    const links = new Map();
    for (const block of travel) {
      const key = `${block.sender} → ${block.receiver}`;
      links.set(key, [...(links.get(key) || []), block]);
    }
    const { hostOf } = plan;
    const place = ({ sender, receiver }) =>
      hostOf[sender] === hostOf[receiver] ? `within host ${hostOf[sender]}` : `host ${hostOf[sender]} → host ${hostOf[receiver]}`;
    const rows = [...links].slice(0, 2 * LISTED).map(([link, blocks]) =>
      [link, ...(hostOf ? [place(blocks[0])] : []), String(blocks.length), grouped(size(plan, blocks))]);
    const more = links.size - rows.length;
    return [
      el("h2", {}, "In all"),
      el("p", { id: "travels" }, `${grouped(size(plan, travel))} bytes travel between processes in ${counted(travel.length, "block")}; ${grouped(size(plan, plan.found) - size(plan, travel))} bytes are there already.`),
      hostOf ? el("p", { id: "hosts-travel" }, hostWords(plan, travel)) : null,
      rows.length ? dom.table("Bytes of each link", ["Process → process", ...(hostOf ? ["Hosts"] : []), "Blocks", "Bytes"], rows) : null,
      more > 0 ? el("p", {}, `and ${counted(more, "more link")}`) : null,
      el("p", { class: "hint" }, "Each process gets each block that it lacks once. This is who sends where hostmesh moves values itself. On one mesh XLA moves them, by collectives of its own choice; they may move more."),
      nearest(plan),
    ];
  }

  function render(old, made, itemsize, hostOf, step) {
    if (old.mesh.size > MOST_DEVICES) {
      return { last: 0, nodes: [el("p", {}, `Blocks are listed up to ${MOST_DEVICES} devices here; this mesh has ${grouped(old.mesh.size)}.`)] };
    }
    const plan = planned(old, made, itemsize, hostOf);
    const now = Math.min(step, plan.last);
    return {
      last: plan.last,
      nodes: [
        el("p", { class: "steps" },
          el("button", { type: "button", id: "back", "data-key": "back", "aria-disabled": String(now === 0) }, "Back"),
          el("button", { type: "button", id: "next", "data-key": "next", "aria-disabled": String(now === plan.last) }, "Next"),
          el("span", {}, `step ${now} of ${plan.last}`)),
        el("p", { id: "step", role: "status" }, heading(plan, now)),
        dom.scrolled("What each process has of the array", maps(plan, now)),
        el("p", { class: "hint" }, "A map of the array for each process. pN: held, of its own. ←pN: came from process N. ?: awaited. A dot: not needed."),
        listing(plan, now),
        totals(plan),
      ],
    };
  }

  return { render };
})();
