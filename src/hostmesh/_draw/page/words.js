// Python's way of writing values, which errors quote, and what is typed: as _plan_command.py reads it.
// Pure: no document.
"use strict";

const words = (() => {
  // ---- Values as Python writes them

  class PlanError extends Error {
    constructor(kind, where, given, rule, advice) {
      super(`${where}\n  given: ${given}\n  rule:  ${rule}\n  do:    ${advice}`);
      this.kind = kind;
      this.rule = rule;
    }
  }

  const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" };

  function quoted(typed) {
    const mark = typed.includes("'") && !typed.includes('"') ? '"' : "'";
    let inner = "";
    for (const sign of typed) {
      const code = sign.codePointAt(0);
      if (sign in ESCAPES) inner += ESCAPES[sign];
      else if (sign === mark) inner += "\\" + sign;
      else if (/^[^\p{C}\p{Z}]$/u.test(sign) || sign === " ") inner += sign;
      else if (code < 256) inner += "\\x" + code.toString(16).padStart(2, "0");
      else if (code < 65536) inner += "\\u" + code.toString(16).padStart(4, "0");
      else inner += "\\U" + code.toString(16).padStart(8, "0");
    }
    return mark + inner + mark;
  }

  function repr(value) {
    if (value === null) return "None";
    if (typeof value === "string") return quoted(value);
    if (typeof value === "boolean") return value ? "True" : "False";
    if (!Array.isArray(value)) return String(value);
    return value.length === 1 ? `(${repr(value[0])},)` : `(${value.map(repr).join(", ")})`;
  }

  const listed = (value) => (Array.isArray(value) ? `[${value.map(listed).join(", ")}]` : repr(value));
  const mapped = (axes) =>
    `{${[...new Map(axes)].map(([name, size]) => `${quoted(name)}: ${size}`).join(", ")}}`;

  const product = (numbers) => numbers.reduce((all, n) => all * n, 1);
  const grouped = (number) => number.toLocaleString("en-US");
  const counted = (number, one, many = one + "s") => `${grouped(number)} ${number === 1 ? one : many}`;

  // ---- What is typed

  const NAME = "[\\p{L}\\p{N}_]+";
  const ENTRY = `(?:${NAME}|\\((?:${NAME}(?:,${NAME})*,?)?\\))`;
  const matcher = (pattern, flags = "u") => new RegExp(pattern, flags);

  function parseMesh(typed) {
    const axis = matcher(`^\\s*(${NAME})\\s*=\\s*(\\d{1,9})\\s*$`);
    const found = typed.split(",").map((part) => axis.exec(part));
    if (found.includes(null)) {
      throw new PlanError(
        "SpecError",
        "--mesh",
        quoted(typed),
        "axes are names with sizes, with commas between",
        "write, for example, data=4,model=2",
      );
    }
    return found.map((match) => [match[1], Number(match[2])]);
  }

  function parseSpec(typed) {
    let inner = typed.replace(/[\s'"]/g, "");
    const wrapped = /^(?:P|PartitionSpec)\((.*)\)$/.exec(inner);
    if (wrapped) inner = wrapped[1];
    if (inner && !matcher(`^${ENTRY}(?:,${ENTRY})*,?$`).test(inner)) {
      throw new PlanError(
        "SpecError",
        "--spec",
        quoted(typed),
        "an entry is None, an axis name or names in parentheses, with commas between",
        "write, for example, 'data,None' or '(data,model),None'",
      );
    }
    return (inner.match(matcher(ENTRY, "gu")) || []).map((entry) => {
      if (entry[0] === "(") return entry.match(matcher(NAME, "gu")) || [];
      return entry === "None" ? null : entry;
    });
  }

  function parseShape(typed) {
    const stripped = typed.replace(/^[() ]+|[() ]+$/g, "").replace(/,+$/, "");
    const parts = stripped.split(",").map((part) => part.trim());
    if (parts.length === 1 && !parts[0]) return [];
    if (!parts.every((part) => /^\d{1,18}$/.test(part))) {
      throw new PlanError(
        "ShapeError",
        "--shape",
        quoted(typed),
        "a shape is whole numbers from 0, with commas between",
        "write, for example, 64,128",
      );
    }
    const sizes = parts.map(Number);
    if (!sizes.every(Number.isSafeInteger)) {
      throw new PlanError(
        "ShapeError",
        "--shape",
        quoted(typed),
        "this page counts to 2**53 - 1",
        "plan larger sizes with hostmesh plan, which has no such limit",
      );
    }
    return sizes;
  }

  // Bytes of an element; names of NumPy and ml_dtypes.
  const ITEMSIZES = {
    float32: 4, bfloat16: 2, float16: 2, float64: 8, int8: 1, int16: 2, int32: 4, int64: 8,
    uint8: 1, uint16: 2, uint32: 4, uint64: 8, bool: 1, complex64: 8, complex128: 16,
    float8_e3m4: 1, float8_e4m3: 1, float8_e4m3b11fnuz: 1, float8_e4m3fn: 1, float8_e4m3fnuz: 1,
    float8_e5m2: 1, float8_e5m2fnuz: 1, float8_e8m0fnu: 1, int4: 1, uint4: 1, float4_e2m1fn: 1,
  };
  const SHORT = { bf16: "bfloat16", f16: "float16", f32: "float32", f64: "float64" };

  function parseDtype(word) {
    const name = Object.hasOwn(SHORT, word) ? SHORT[word] : word;
    if (Object.hasOwn(ITEMSIZES, name)) return { name, itemsize: ITEMSIZES[name] };
    throw new PlanError(
      "ShapeError",
      "--dtype",
      quoted(word),
      "it is a dtype of NumPy or ml_dtypes",
      "write, for example, float32 or bf16",
    );
  }

  function parseOrder(typed) {
    let order = null;
    // A fraction is no process number, though JavaScript reads 1.0 as 1.
    if (!/\d[.eE]/.test(typed)) {
      try {
        order = JSON.parse(typed);
      } catch {
        order = null;
      }
    }
    if (Array.isArray(order)) return order;
    throw new PlanError(
      "SpecError",
      "--order",
      quoted(typed),
      "it is block, interleaved, or a JSON list of process numbers",
      "write a list such as [0, 1, 1, 0]: the process of each device, row-major",
    );
  }

  return {
    PlanError, repr, listed, mapped, quoted, product, grouped, counted, parseMesh, parseSpec,
    parseShape, parseDtype, parseOrder, ITEMSIZES,
  };
})();

if (typeof module !== "undefined") module.exports = words;
