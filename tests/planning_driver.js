// Answers questions of test_page_planning.py, one JSON line each, with the page's own scripts.
"use strict";

const path = require("node:path");
const readline = require("node:readline");

const pages = process.argv[2];
globalThis.words = require(path.join(pages, "words.js"));
globalThis.planning = require(path.join(pages, "planning.js"));
globalThis.sentences = require(path.join(pages, "sentences.js"));
const moves = require(path.join(pages, "moves.js"));
const model = require(path.join(pages, "model.js"));

function topologyOf(asked) {
  const order = typeof asked.order === "string" ? asked.order : words.parseOrder(JSON.stringify(asked.order));
  return planning.topology(words.parseMesh(asked.mesh), asked.processes, order);
}

function said(made, itemsize) {
  const process = made.mesh.processes[0];
  const mine = planning.share(made, process);
  return [
    sentences.meshNote(made.mesh),
    sentences.arrayNote(made),
    sentences.localNote(made, process),
    ...mine.held.flatMap((numbers, i) =>
      numbers.map((number, rank) => sentences.localPlace(rank, number, made.counts[i], made.shardShape[i]))),
    sentences.passing("()", made.mesh.processes),
    ...sentences.sharing(planning.replicaGroups(made)),
    sentences.onAll(made, planning.bytes(made, itemsize, process).all),
    sentences.jax(made.mesh),
  ];
}

function planned(asked) {
  const mesh = topologyOf(asked);
  const made = planning.plan(mesh, words.parseSpec(asked.spec), words.parseShape(asked.shape));
  const { itemsize } = words.parseDtype(asked.dtype);
  const processes = Array.from({ length: asked.processes + 1 }, (_, process) => process);
  return {
    owners: mesh.owners,
    counts: made.counts,
    shard: made.shardShape,
    spec: planning.specWords(made.axes),
    groups: made.byChunk.map((_, number) => planning.holdersAt(made, number)),
    refuses: planning.refuses(mesh),
    bytes: processes.map((process) =>
      Object.values(planning.bytes(made, itemsize, process)).map(String)),
    local: processes.map((process) => planning.localShape(made, process)),
    placements: processes.map((process) => planning.placements(made, process)),
    missing: processes.map((process) => planning.missing(made, process)),
    subcube: processes.map((process) => planning.isSubcube(mesh, process)),
    code: planning.code(made, asked.processes, asked.order, mesh.processes[0]),
    said: said(made, itemsize),
  };
}

function resharded(asked) {
  const mesh = topologyOf(asked);
  const [old, made] = [asked.spec, asked.to].map((spec) =>
    planning.plan(mesh, words.parseSpec(spec), words.parseShape(asked.shape)));
  const found = moves.blocks(old, made);
  if (asked.hosts === undefined) return found;
  const hostOf = asked.hosts === null ? null : planning.hostsOf(old.mesh.processes.at(-1) + 1, asked.hosts);
  return { needs: moves.needs(old, made, hostOf), sent: moves.sent(found, hostOf), hosts: hostOf };
}

function tabled(asked) {
  const bytes = Buffer.from(asked.file, "base64");
  const length = model.headerLength(new Uint8Array(bytes.subarray(0, 8)), bytes.length, "file");
  const text = bytes.subarray(8, 8 + length).toString();
  const tensors = model.parseHeader(text, length, bytes.length, "file");
  const rows = model.rows(topologyOf(asked), tensors, model.parseRules(asked.rules));
  return asked.column === undefined ? rows
    : model.chosen(rows, asked.filter, asked.column, asked.ascending).map((row) => row.tensor.name);
}

const ASKED = { planned, resharded, tabled, dtypes: () => words.ITEMSIZES };

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const asked = JSON.parse(line);
  let answer;
  try {
    answer = { is: ASKED[asked.what](asked) };
  } catch (error) {
    if (!(error instanceof words.PlanError)) throw error;
    answer = { kind: error.kind, error: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
});
