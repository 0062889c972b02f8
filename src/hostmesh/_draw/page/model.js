// A model's tensors from the header of its .safetensors file, as _storage/_format.py reads it, and a
// spec for each by name. Pure: no document.
"use strict";

if (typeof require !== "undefined") globalThis.planning = require("./planning.js");

const model = (() => {
  const { PlanError, product, quoted, repr } = words;
  const MAX_HEADER_BYTES = 100_000_000;
  const DTYPES = {
    U64: "uint64", I64: "int64", F64: "float64", C64: "complex64", F32: "float32", U32: "uint32",
    I32: "int32", BF16: "bfloat16", F16: "float16", U16: "uint16", I16: "int16",
    F8_E5M2FNUZ: "float8_e5m2fnuz", F8_E4M3FNUZ: "float8_e4m3fnuz", F8_E8M0: "float8_e8m0fnu",
    F8_E4M3: "float8_e4m3fn", F8_E5M2: "float8_e5m2", I8: "int8", U8: "uint8", BOOL: "bool",
  };

  function refuse(where, given, rule, advice = "get or write the file anew") {
    throw new PlanError("StorageError", where, given, rule, advice);
  }

  // How many bytes of header follow the first eight (a Uint8Array) of a file of `size` bytes.
  function headerLength(prefix, size, where) {
    const rule = "it begins with eight bytes of header length, and holds the header whole";
    if (prefix.length < 8) refuse(where, `a file of ${size} bytes`, rule);
    const length = prefix.slice(0, 8).reduceRight((all, byte) => all * 256n + BigInt(byte), 0n);
    if (length > BigInt(size) - 8n) refuse(where, `a file of ${size} bytes whose header claims ${length}`, rule);
    if (length > MAX_HEADER_BYTES) {
      refuse(where, `a header of ${length} bytes`, `it has at most ${MAX_HEADER_BYTES}`);
    }
    return Number(length);
  }

  const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const areSizes = (value) => Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);

  // The tensors of a header's text, in the order of their bytes, which must fill the file's rest.
  function parseHeader(text, headerBytes, size, where) {
    let found;
    try {
      found = JSON.parse(text);
    } catch (error) {
      refuse(where, `a header that is no JSON: ${error.message}`, "it is one JSON object");
    }
    if (!isMapping(found)) refuse(where, "a header of another kind", "it is one JSON object");
    delete found.__metadata__;
    const tensors = Object.entries(found).map(([name, value]) => tensorOf(name, value, where));
    tensors.sort((a, b) => a.start - b.start || a.stop - b.stop);
    let end = 0;
    for (const { name, start, stop } of tensors) {
      if (start !== end) {
        refuse(
          `${where}: tensor ${quoted(name)}`,
          `data_offsets from ${start}, where the one before ends at ${end}`,
          "tensors follow each other without gap or overlap",
        );
      }
      end = stop;
    }
    const rest = size - 8 - headerBytes;
    if (end !== rest) {
      refuse(
        where,
        `${rest} bytes of data in a file of ${size}`,
        `its header of ${tensors.length} tensors claims ${end}`,
      );
    }
    return tensors;
  }

  function tensorOf(name, value, where) {
    const here = `${where}: tensor ${quoted(name)}`;
    const fields = isMapping(value) ? Object.keys(value).sort().join(", ") : "";
    if (fields !== "data_offsets, dtype, shape") {
      refuse(here, JSON.stringify(value).slice(0, 120), "it is given by data_offsets, dtype, shape, no less or more");
    }
    const { dtype, shape, data_offsets: offsets } = value;
    if (!Object.hasOwn(DTYPES, dtype)) {
      refuse(here, `dtype ${quoted(String(dtype).slice(0, 40))}`, `the format has ${Object.keys(DTYPES).join(", ")}`);
    }
    if (!areSizes(shape)) refuse(here, `shape ${JSON.stringify(shape)}`, "it is a list of sizes of at least 0");
    if (!areSizes(offsets) || offsets.length !== 2 || offsets[0] > offsets[1]) {
      refuse(here, `data_offsets ${JSON.stringify(offsets)}`, "they are a start and a stop not below it");
    }
    const itemsize = words.ITEMSIZES[DTYPES[dtype]];
    const [claimed, nbytes] = [offsets[1] - offsets[0], product(shape) * itemsize];
    if (claimed !== nbytes) {
      refuse(
        here,
        `data_offsets [${offsets.join(", ")}], which are ${claimed} bytes`,
        `shape [${shape.join(", ")}] of ${dtype} takes ${nbytes}`,
      );
    }
    return { name, dtype: DTYPES[dtype], itemsize, shape, start: offsets[0], stop: offsets[1], nbytes };
  }

  // Lines of "pattern -> spec"; what stands behind a # is a remark.
  function parseRules(typed) {
    const rules = [];
    typed.split("\n").forEach((line, i) => {
      const stripped = line.replace(/#.*/, "").trim();
      if (!stripped) return;
      const at = stripped.indexOf("->");
      if (at < 1) {
        throw new PlanError(
          "SpecError",
          `rules, line ${i + 1}`,
          quoted(stripped),
          "a rule is a pattern of names, ->, and a spec",
          "write, for example, *.weight -> data,None",
        );
      }
      const pattern = stripped.slice(0, at).trim();
      rules.push({ pattern, expression: glob(pattern), spec: words.parseSpec(stripped.slice(at + 2)) });
    });
    return rules;
  }

  // The patterns of Python's fnmatch: * ? [seq] [!seq].
  function glob(pattern) {
    const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
    const parts = pattern.replace(/\*+/g, "*").match(/\*|\?|\[!?\]?[^\]]*\]|[^]/gu) || [];
    const source = parts.map((part) => {
      if (part === "*") return "[^]*";
      if (part === "?") return "[^]";
      if (part.length < 3 || part[0] !== "[") return escaped(part);
      const inner = part.slice(1, -1);
      const negated = inner[0] === "!";
      return `[${negated ? "^" : ""}${inner.slice(negated ? 1 : 0).replace(/[\\\]^[]/g, "\\$&")}]`;
    });
    return new RegExp(`^${source.join("")}$`, "u");
  }

  // A name goes before patterns, and the first pattern that matches counts.
  function ruleFor(rules, name) {
    return rules.find((r) => r.pattern === name) || rules.find((r) => r.expression.test(name)) || null;
  }

  // One row a tensor: its plan, or why it has none. Where there are rules, each needs one that matches.
  function rows(mesh, tensors, rules) {
    return tensors.map((tensor) => {
      const rule = ruleFor(rules, tensor.name);
      if (!rule && rules.length) {
        const wrong = "matches no rule";
        return { tensor, rule, spec: "", shard: null, device: 0, error: wrong, wrong };
      }
      try {
        const made = planning.plan(mesh, rule ? rule.spec : [], tensor.shape);
        const device = product(made.shardShape) * tensor.itemsize;
        return { tensor, rule, spec: planning.specWords(made.axes), shard: made.shardShape, device, error: "", wrong: "" };
      } catch (error) {
        if (!(error instanceof PlanError)) throw error;
        return { tensor, rule, spec: rule.spec.map(repr).join(), shard: null, device: 0, error: error.message, wrong: error.rule };
      }
    });
  }

  // What the table is sorted by: numbers where larger comes first, or texts.
  const COLUMNS = {
    Tensor: (row) => row.tensor.name,
    "Bytes a device": (row) => row.device,
    Shard: (row) => (row.shard ? product(row.shard) : -1),
    Shape: (row) => product(row.tensor.shape),
    dtype: (row) => row.tensor.dtype,
    Spec: (row) => row.spec,
    Rule: (row) => (row.rule ? row.rule.pattern : ""),
  };
  const ascends = (column) => column !== "Bytes a device" && column !== "Shard" && column !== "Shape";

  // The rows whose names a regular expression is found in, in the file's order or that of a column;
  // those that are equal there stand by name.
  function chosen(all, pattern, column = null, ascending = true) {
    let wanted;
    try {
      wanted = new RegExp(pattern, "u");
    } catch (error) {
      throw new PlanError("SpecError", "--filter", `${quoted(pattern)}: ${error.message}`,
        "it is a regular expression, looked for in names", "write, for example, 'layer.0.' or 'weight$'");
    }
    const found = all.filter((row) => wanted.test(row.tensor.name));
    if (column === null) return found;
    const by = (value, a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0);
    const sign = ascending ? 1 : -1;
    return found.sort((a, b) => sign * by(COLUMNS[column], a, b) || by(COLUMNS.Tensor, a, b));
  }

  return { headerLength, parseHeader, parseRules, ruleFor, rows, chosen, ascends, COLUMNS };
})();

if (typeof module !== "undefined") module.exports = model;
