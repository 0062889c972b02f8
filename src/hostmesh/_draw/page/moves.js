// Which process sends which block to whom, between two layouts of one mesh: the rule of _reshard.py
// and _moves.py, where hostmesh moves values itself. Pure: no document.
"use strict";

if (typeof require !== "undefined") globalThis.planning = require("./planning.js");

const moves = (() => {
  const { product } = words;

  // The new chunks that share elements with an old one, each with the box that they share.
  function overlaps(old, chunk, made) {
    if (old.shape.includes(0)) return [];
    const index = planning.globalIndex(old, chunk);
    const first = index.map(([a], i) => Math.floor(a / made.shardShape[i]));
    const sizes = index.map(([, b], i) => Math.ceil(b / made.shardShape[i]) - first[i]);
    return Array.from({ length: product(sizes) }, (_, k) => {
      const into = planning.digits(k, sizes).map((d, i) => first[i] + d);
      const there = planning.globalIndex(made, into);
      return { into, box: index.map(([a, b], i) => [Math.max(a, there[i][0]), Math.min(b, there[i][1])]) };
    });
  }

  // Every block that a process needs: what it holds itself comes from itself, anything else from one
  // of the holders, by turns, so that none sends all.
  function blocks(old, made) {
    const found = [];
    old.byChunk.forEach((positions) => {
      const chunk = old.chunkOf[positions[0]];
      const holders = planning.holders(old, chunk);
      const turn = chunk.reduce((a, b) => a + b, 0);
      for (const { into, box } of overlaps(old, chunk, made)) {
        for (const receiver of planning.holders(made, into)) {
          const sender = holders.includes(receiver) ? receiver : holders[(receiver + turn) % holders.length];
          const elements = product(box.map(([a, b]) => b - a));
          found.push({ sender, receiver, chunk, into, box, elements });
        }
      }
    });
    return found;
  }

  // The blocks that travel, in rounds: in each, every process sends to the one so many places on.
  function rounds(found, processes) {
    const rank = new Map(processes.map((process, i) => [process, i]));
    const count = processes.length;
    const by = new Map();
    for (const block of found) {
      const step = (rank.get(block.receiver) - rank.get(block.sender) + count) % count;
      if (!step) continue;
      if (!by.has(step)) by.set(step, []);
      by.get(step).push(block);
    }
    return [...by.keys()].sort((a, b) => a - b).map((step) => ({ step, blocks: by.get(step) }));
  }

  // The elements that all devices need, by where the nearest copy of each lies: the rule of
  // _transfers.py. `hostOf` gives the host of each process, or is null.
  function needs(old, made, hostOf) {
    const { owners } = old.mesh;
    const host = (device) => hostOf[owners[device]];
    const total = { own: 0, process: 0, host: 0, far: 0 };
    owners.forEach((owner, device) => {
      for (const { into, box } of overlaps(made, made.chunkOf[device], old)) {
        const having = old.byChunk[old.flat(into)];
        const nearest = having.includes(device) ? "own"
          : having.some((other) => owners[other] === owner) ? "process"
          : hostOf && having.some((other) => host(other) === host(device)) ? "host"
          : "far";
        total[nearest] += product(box.map(([a, b]) => b - a));
      }
    });
    return total;
  }

  // The elements of blocks that travel, within a host and between hosts.
  function sent(found, hostOf) {
    const total = { host: 0, far: 0 };
    for (const { sender, receiver, elements } of found) {
      if (sender !== receiver) total[hostOf && hostOf[sender] === hostOf[receiver] ? "host" : "far"] += elements;
    }
    return total;
  }

  return { blocks, rounds, needs, sent };
})();

if (typeof module !== "undefined") module.exports = moves;
