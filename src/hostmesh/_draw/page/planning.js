// Who holds what, by the rules of _topology.py, _spec.py, _layout.py and _plan.py, in their words.
// Pure: no document. tests/test_page_planning.py compares every answer with Python's.
"use strict";

// In the page these are scripts one after the other; in node they ask for each other.
if (typeof require !== "undefined") globalThis.words = require("./words.js");

const planning = (() => {
  const { PlanError, repr, listed, mapped, quoted, product } = words;

  // ---- Topology

  const topologyError = (given, rule, advice) => new PlanError("SpecError", "Topology", given, rule, advice);

  // The shape of nested lists of numbers; null where they are ragged or hold anything else.
  function shapeOf(order) {
    if (typeof order === "number") return [];
    if (!Array.isArray(order) || !order.length) return null;
    const shapes = order.map(shapeOf);
    const first = JSON.stringify(shapes[0]);
    return shapes[0] && shapes.every((s) => JSON.stringify(s) === first) ? [order.length, ...shapes[0]] : null;
  }

  function numbers(order) {
    const shape = shapeOf(order);
    const flat = shape && shape.length ? order.flat(Infinity) : [];
    const largest = 2 ** 31 - 1;
    if (!shape || !flat.every((n) => Number.isInteger(n) && n >= 0 && n <= largest)) {
      throw topologyError(
        [...`process numbers ${listed(order)}`].slice(0, 200).join(""),
        `they are an array of whole numbers from 0 to ${largest}`,
        "number the processes from 0",
      );
    }
    return { shape, flat };
  }

  // `order` is "block", "interleaved" or lists of process numbers.
  function topology(axes, processes, order = "block") {
    const sizes = axes.map(([, size]) => size);
    const count = product(sizes);
    let given = null;
    if (Array.isArray(order)) {
      given = numbers(order);
      const most = given.flat.reduce((a, b) => Math.max(a, b), 0);
      if (most >= processes) {
        throw topologyError(
          `process number ${most} with processes=${processes}`,
          `process numbers lie between 0 and ${processes - 1}`,
          "raise processes, or renumber the order",
        );
      }
    } else if (processes < 1 || count % processes) {
      throw topologyError(
        `${count} devices for processes=${processes}`,
        `order='${order}' gives every process as many devices, but ${count} is not a positive` +
          ` multiple of ${processes}`,
        "change an axis size or the number of processes, or give an array as order",
      );
    }
    if (new Map(axes).size !== axes.length || sizes.some((size) => size < 1)) {
      throw topologyError(
        `axes ${mapped(axes)} of sizes ${repr(sizes)}`,
        "axis names are distinct and sizes at least 1",
        "give every mesh axis its own name and a positive size",
      );
    }
    if (given && ![repr(sizes), repr([count])].includes(repr(given.shape))) {
      throw topologyError(
        `process numbers of shape ${repr(given.shape)}`,
        `a mesh of shape ${repr(sizes)} has ${count} devices, each of one process`,
        "give one process number for each device, in the mesh's shape or flat",
      );
    }
    const each = count / processes;
    const owner = (i) => (order === "block" ? Math.floor(i / each) : i % processes);
    const owners = given ? given.flat : Array.from({ length: count }, (_, i) => owner(i));
    const positions = new Map();
    owners.forEach((process, i) => {
      if (!positions.has(process)) positions.set(process, []);
      positions.get(process).push(i);
    });
    const members = [...positions.keys()].sort((a, b) => a - b);
    return { axes, sizes, owners, positions, size: count, processes: members };
  }

  // A number as digits of mixed sizes, the first being the major one.
  function digits(number, sizes) {
    const at = new Array(sizes.length);
    for (let i = sizes.length - 1; i >= 0; i--) {
      at[i] = number % sizes[i];
      number = Math.floor(number / sizes[i]);
    }
    return at;
  }

  // The host of each process, where hosts have as many in a row.
  function hostsOf(processes, hosts) {
    if (hosts > processes) {
      throw new PlanError("SpecError", "--hosts", `${hosts} hosts for ${processes} processes`,
        "each host has a process at least", `give --hosts 1 to ${processes}`);
    }
    return Array.from({ length: processes }, (_, process) => Math.floor((process * hosts) / processes));
  }

  const positionsOf = (mesh, process) => mesh.positions.get(process) || [];

  function isSubcube(mesh, process) {
    const at = positionsOf(mesh, process).map((i) => digits(i, mesh.sizes));
    if (!at.length) return false;
    const spans = mesh.sizes.map((_, axis) => {
      const column = at.map((place) => place[axis]);
      return Math.max(...column) - Math.min(...column) + 1;
    });
    return product(spans) === at.length;
  }

  // ---- Spec

  const specError = (spec, rule, advice) => new PlanError("SpecError", "plan", `spec ${repr(spec)}`, rule, advice);

  function normalize(mesh, spec, rank) {
    const cuts = spec.map((entry) => (entry === null ? [] : Array.isArray(entry) ? entry : [entry]));
    const used = cuts.flat();
    const known = new Map(mesh.axes);
    for (const axis of used) {
      if (!known.has(axis)) {
        throw specError(
          spec,
          `${quoted(axis)} is no axis of the mesh, whose axes are ${mapped(mesh.axes)}`,
          "correct the name, or build the mesh with this axis",
        );
      }
      const times = used.filter((name) => name === axis).length;
      if (times > 1) {
        throw specError(
          spec,
          `axis ${quoted(axis)} is used ${times} times; a mesh axis cuts at most one dimension, once`,
          "remove all uses but one",
        );
      }
    }
    if (cuts.length > rank) {
      throw specError(
        spec,
        `it has ${cuts.length} entries, more than the ${rank} dimensions of the value`,
        rank ? "drop the last entries, or add dimensions to the value" : "use PartitionSpec() for a scalar",
      );
    }
    while (cuts.length < rank) cuts.push([]);
    return cuts;
  }

  const entryOf = (names) => (names.length === 1 ? names[0] : names.length ? names : null);
  const shown = (axes) => `P(${axes.map((names) => repr(entryOf(names))).join(", ")})`;

  // The spec as it is written in code, without what cuts nothing at its end.
  function specWords(axes) {
    let last = axes.length;
    while (last && !axes[last - 1].length) last--;
    return shown(axes.slice(0, last));
  }

  // ---- Plan

  function plan(mesh, spec, shape) {
    const axes = normalize(mesh, spec, shape.length);
    const number = new Map(mesh.axes.map(([name], i) => [name, i]));
    const sizesOf = (cut) => cut.map((name) => mesh.sizes[number.get(name)]);
    const counts = axes.map((cut) => product(sizesOf(cut)));
    shape.forEach((size, i) => {
      if (size % counts[i] === 0) return;
      const n = counts[i];
      const below = size - (size % n);
      const cut = axes[i].map((name) => `${name}=${mesh.sizes[number.get(name)]}`).join(" x ");
      throw new PlanError(
        "ShapeError",
        "plan",
        `global shape ${repr(shape)}, spec ${shown(axes)}`,
        `dimension ${i} is cut by ${cut} in ${n} chunks: its size ${size} must be a multiple of ${n}`,
        `pad or trim it to ${below ? `${below} or ${below + n}` : below + n}, or cut it by fewer mesh axes`,
      );
    });
    const chunkOf = mesh.owners.map((_, position) => {
      const at = digits(position, mesh.sizes);
      return axes.map((cut) => cut.reduce((c, name) => c * mesh.sizes[number.get(name)] + at[number.get(name)], 0));
    });
    const flat = (chunk) => chunk.reduce((all, c, i) => all * counts[i] + c, 0);
    const byChunk = Array.from({ length: product(counts) }, () => []);
    chunkOf.forEach((chunk, position) => byChunk[flat(chunk)].push(position));
    const shardShape = shape.map((size, i) => size / counts[i]);
    return { mesh, axes, shape, counts, shardShape, chunkOf, byChunk, flat };
  }

  const place = (c, size) => [c * size, c * size + size];
  const globalIndex = (made, chunk) => chunk.map((c, i) => place(c, made.shardShape[i]));
  const holders = (made, chunk) => holdersAt(made, made.flat(chunk));
  const holdersAt = (made, number) =>
    [...new Set(made.byChunk[number].map((i) => made.mesh.owners[i]))].sort((a, b) => a - b);

  // What one process holds: its positions, chunks, and the chunk numbers along each dimension.
  function share(made, process) {
    const positions = positionsOf(made.mesh, process);
    const chunks = positions.map((i) => made.chunkOf[i]);
    const held = made.counts.map((_, i) => [...new Set(chunks.map((c) => c[i]))].sort((a, b) => a - b));
    const distinct = [...new Set(chunks.map(made.flat))].sort((a, b) => a - b);
    return { positions, chunks, held, distinct };
  }

  function localShape(made, process) {
    const mine = share(made, process);
    return mine.positions.length ? mine.held.map((c, i) => c.length * made.shardShape[i]) : null;
  }

  function placements(made, process) {
    const mine = share(made, process);
    const ranks = mine.held.map((numbers) => new Map(numbers.map((c, rank) => [c, rank])));
    return mine.positions.map((position, k) => ({
      device: position,
      chunk: mine.chunks[k],
      global: globalIndex(made, mine.chunks[k]),
      local: mine.chunks[k].map((c, i) => place(ranks[i].get(c), made.shardShape[i])),
    }));
  }

  // The chunks of a host-local value that none of the process's devices holds.
  function missing(made, process) {
    const mine = share(made, process);
    if (!mine.positions.length) return [];
    const here = new Set(mine.distinct);
    const sizes = mine.held.map((numbers) => numbers.length);
    return Array.from({ length: product(sizes) }, (_, k) => digits(k, sizes).map((r, i) => mine.held[i][r]))
      .filter((chunk) => !here.has(made.flat(chunk)));
  }

  // Groups of processes that hold the same chunks, with how many, in the order of chunks.
  function replicaGroups(made) {
    const groups = new Map();
    made.byChunk.forEach((_, number) => {
      const processes = holdersAt(made, number);
      const key = processes.join();
      if (!groups.has(key)) groups.set(key, { processes, chunks: 0 });
      groups.get(key).chunks += 1;
    });
    return [...groups.values()];
  }

  // Whole numbers without limit: a product of sizes may go beyond those of JavaScript.
  function bytes(made, itemsize, process) {
    const device = made.shardShape.reduce((all, size) => all * BigInt(size), BigInt(itemsize));
    const held = positionsOf(made.mesh, process).length;
    return { device, process: device * BigInt(held), all: device * BigInt(made.mesh.size) };
  }

  const refuses = (mesh) => mesh.processes.find((process) => !isSubcube(mesh, process)) ?? null;

  // What comes of the code: of one process, or of all where they agree.
  function shapes(made, process) {
    const each = made.mesh.processes.map((one) => repr(localShape(made, one)));
    const uniform = each.every((shape) => shape === each[0]);
    const local = uniform ? each[0] : repr(localShape(made, process));
    return `${local === "None" ? "" : `local.shape == ${local}, `}x.shape == ${repr(made.shape)}`;
  }

  // The code that makes the array, as `hostmesh plan` prints it.
  function code(made, processes, order, process) {
    const { mesh } = made;
    let devices = "np.array(jax.devices())";
    if (order === "interleaved") devices += `.reshape(${processes}, ${Math.floor(mesh.size / processes)}).T`;
    else if (order !== "block") devices += "[np.argsort(np.argsort(owners, kind='stable'))]";
    const names = repr(mesh.axes.map(([name]) => name));
    const lines = [
      "import hostmesh as hm, jax, numpy as np; from jax.sharding import Mesh, PartitionSpec as P",
      `mesh = Mesh(${devices}.reshape(${repr(mesh.sizes)}), ${names})`,
      `x = hm.to_global(local, mesh, ${specWords(made.axes)})  # ${shapes(made, process)}`,
    ];
    if (Array.isArray(order)) lines.splice(1, 0, `owners = ${listed(mesh.owners)}`);
    return lines;
  }

  return {
    digits, topology, hostsOf, positionsOf, isSubcube, plan, specWords, globalIndex, holders, holdersAt, share,
    localShape, placements, missing, replicaGroups, bytes, refuses, code,
  };
})();

if (typeof module !== "undefined") module.exports = planning;
