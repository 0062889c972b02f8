// The state, its link, and the controls: whatever changes, the tab that is shown is drawn anew.
"use strict";

(() => {
  const { el, fill } = dom;
  const $ = (id) => document.getElementById(id);
  const TABS = ["layout", "reshard", "model"];
  const FIELDS = ["processes", "order", "owners", "shape", "dtype", "spec", "process", "to", "hosts", "rules"];
  const MOST_DEVICES = 65536;
  const state = {
    tab: "layout", mesh: "data=4,model=2", processes: "4", order: "block", owners: "[0, 0, 1, 1, 2, 2, 3, 3]",
    shape: "64,128", dtype: "float32", spec: "data,None", process: "0", to: "None,model", hosts: "",
    rules: "*.weight -> data,model\n*.bias -> None",
  };
  const passing = { step: 0, last: 0, file: null, shown: files.PAGE, sort: { column: null, ascending: true } }; // not in the link
  let context = null; // what the shown layout is made of

  // ---- The link: all of the state, readable

  const readable = (value) => encodeURIComponent(value).replace(/%(2C|3D|20)/g, (_, code) => ({ "2C": ",", "3D": "=", 20: "+" })[code]);
  const written = () => "#" + Object.entries(state).map(([key, value]) => `${key}=${readable(value)}`).join("&");

  function readLink() {
    for (const part of location.hash.slice(1).split("&")) {
      const [key, ...rest] = part.split("=");
      if (!Object.hasOwn(state, key)) continue;
      try {
        state[key] = decodeURIComponent(rest.join("=").replace(/\+/g, " "));
      } catch {
        // A link that was cut off within a character: the rest of it is good.
      }
    }
    if (!TABS.includes(state.tab)) state.tab = "layout";
  }

  // ---- Axes: rows that are typed into, and what each cuts

  const axisRows = () => state.mesh.split(",").map((part) => {
    const at = part.indexOf("=");
    return at < 0 ? [part, ""] : [part.slice(0, at).trim(), part.slice(at + 1).trim()];
  });
  const meshOf = (rows) => rows.map(([name, size]) => `${name}=${size}`).join(",");

  function attempt(compute, otherwise) {
    try {
      return compute();
    } catch (error) {
      if (!(error instanceof words.PlanError)) throw error;
      return otherwise;
    }
  }

  const sizes = () => attempt(() => words.parseShape(state.shape), []);

  // The axes that cut each dimension, as far as the spec can be read.
  function cuts() {
    const entries = attempt(() => words.parseSpec(state.spec), []);
    return sizes().map((_, i) => [entries[i] ?? []].flat());
  }

  function assign(axis, dimension) {
    const left = cuts().map((names) => names.filter((name) => name !== axis));
    if (dimension !== null) left[dimension].push(axis);
    const entries = left.map((names) => (names.length > 1 ? `(${names.join(",")})` : names[0] ?? "None"));
    state.spec = entries.join(",");
    update();
  }

  const axisRow = (k) => el("li", { class: "axis", "data-row": k },
    el("label", {}, "Axis", el("input", { "data-part": 0, spellcheck: "false" })),
    el("label", {}, "Size", el("input", { "data-part": 1, type: "number", min: 1 })),
    el("label", { class: "cuts" }, "Cuts", el("select")),
    el("button", { type: "button", "data-remove": k }, "✕"));

  function drawAxes() {
    const rows = axisRows();
    const now = cuts();
    // Rows that stay are kept, so that whoever types in one keeps the place.
    const items = [...$("axes").children].slice(0, rows.length);
    while (items.length < rows.length) items.push(axisRow(items.length));
    for (const gone of [...$("axes").children].slice(rows.length)) gone.remove();
    for (const item of items) if (!item.isConnected) $("axes").append(item);
    rows.forEach(([name, size], k) => {
      const [nameInput, sizeInput, select, remove] = items[k].querySelectorAll("input, select, button");
      if (nameInput.value !== name) nameInput.value = name;
      if (sizeInput.value !== size) sizeInput.value = size;
      const options = [["", "nothing"], ...now.map((_, i) => [String(i), `dim ${i}`])];
      select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
      const at = now.findIndex((names) => names.includes(name));
      select.value = at < 0 ? "" : String(at);
      select.dataset.axis = name;
      remove.setAttribute("aria-label", `Remove axis ${name}`);
    });
    const chip = (name) => el("span", { class: "axis-chip", "data-drag": name }, `⠿ ${name}`);
    const free = rows.map(([name]) => name).filter((name) => !now.flat().includes(name));
    fill($("zones"),
      el("div", { class: "tray", "data-zone": "" }, "cut nothing: ", free.map(chip)),
      now.map((names, i) => el("div", { class: "zone", "data-zone": i }, `dim ${i} (${sizes()[i]}): `, names.map(chip), names.length ? "" : "not cut")));
  }

  // ---- Drawing

  function meshNow() {
    const axes = words.parseMesh(state.mesh);
    const devices = words.product(axes.map(([, size]) => size));
    if (devices > MOST_DEVICES) {
      throw new words.PlanError("SpecError", "this page", words.counted(devices, "device"),
        `it plans up to ${words.grouped(MOST_DEVICES)}`, "plan larger meshes with hostmesh plan");
    }
    const processes = Number(state.processes);
    if (!/^\d+$/.test(state.processes) || processes < 1) {
      throw new words.PlanError("SpecError", "--processes", words.quoted(state.processes),
        "processes are counted from 1", "write a whole number, such as 4");
    }
    const order = state.order === "list" ? words.parseOrder(state.owners) : state.order;
    return { mesh: planning.topology(axes, processes, order), processes, order };
  }

  function contextNow() {
    const { mesh, processes, order } = meshNow();
    const process = Number(state.process);
    if (!/^\d+$/.test(state.process) || process >= processes) {
      throw new words.PlanError("SpecError", "--process", state.process,
        `with --processes ${processes} they are numbered 0 to ${processes - 1}`,
        "choose one of these, or raise --processes");
    }
    const dtype = words.parseDtype(state.dtype);
    const made = planning.plan(mesh, words.parseSpec(state.spec), words.parseShape(state.shape));
    return { mesh, processes, order, process, dtype, made };
  }

  // The host of each process; null where nothing is known of hosts.
  function hostsNow(mesh) {
    if (!state.hosts.trim()) return null;
    if (!/^[1-9]\d*$/.test(state.hosts)) {
      throw new words.PlanError("SpecError", "--hosts", state.hosts, "it is a whole number from 1", "leave it empty where hosts are not known");
    }
    return planning.hostsOf(mesh.processes.at(-1) + 1, Number(state.hosts));
  }

  const DRAW = {
    layout() {
      context = contextNow();
      fill($("panel-layout"), layout.render(context));
      for (const figure of document.querySelectorAll("#panel-layout figure")) {
        const first = figure.querySelector(".chip");
        if (first) first.tabIndex = 0;
      }
      for (const chip of document.querySelectorAll(".chip")) {
        chip.classList.toggle("mine", context.mesh.owners[chip.dataset.device] === context.process);
      }
    },
    reshard() {
      const { mesh, dtype, made } = contextNow();
      const target = planning.plan(mesh, words.parseSpec(state.to), made.shape);
      const drawn = reshard.render(made, target, dtype.itemsize, hostsNow(mesh), passing.step);
      passing.last = drawn.last;
      passing.step = Math.min(passing.step, drawn.last);
      fill($("reshard"), drawn.nodes);
    },
    model() {
      fill($("model"), files.render(meshNow().mesh, passing.file, state.rules, $("filter").value, passing.sort, passing.shown));
      $("filter-label").hidden = !passing.file;
    },
  };

  function draw() {
    let wrong = "";
    try {
      DRAW[state.tab]();
    } catch (error) {
      if (!(error instanceof words.PlanError)) throw error;
      wrong = `${error.kind}: ${error.message}`;
    }
    showError(wrong);
    for (const id of ["panel-layout", "reshard", "model"]) $(id).hidden = false;
    const stale = { layout: "panel-layout", reshard: "reshard", model: "model" }[state.tab];
    $(stale).hidden = Boolean(wrong);
    for (const tab of TABS) {
      const chosen = tab === state.tab;
      $(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
      $(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
      if (!chosen || tab !== "layout") $(`panel-${tab}`).hidden = !chosen;
    }
    for (const part of document.querySelectorAll(".array-only")) part.hidden = state.tab === "model";
    for (const part of document.querySelectorAll(".layout-only")) part.hidden = state.tab !== "layout";
    $("controls").dataset.tab = state.tab;
    $("owners-label").hidden = state.order !== "list";
    even();
  }

  // Equal chunks look equal: the cells of a picture are all as wide as its widest.
  function even() {
    for (const table of document.querySelectorAll("#panel-layout .grid")) {
      const cells = [...table.querySelectorAll("tbody td:not(.gap)")];
      const widest = Math.max(...cells.map((cell) => cell.offsetWidth));
      for (const cell of cells) cell.style.minWidth = `${widest}px`;
    }
  }

  function showError(text) {
    if ($("error").textContent !== text) fill($("error"), text ? el("pre", {}, text) : "");
  }

  function update() {
    for (const id of FIELDS) if ($(id).value !== state[id]) $(id).value = state[id];
    drawAxes();
    draw();
    history.replaceState(null, "", written());
    $("link").value = location.href;
  }

  // ---- What the reader does

  function changed({ target }) {
    const row = target.closest("[data-row]");
    if (FIELDS.includes(target.id)) {
      state[target.id] = target.value;
      if (target.id === "order" && target.value === "list") state.owners = JSON.stringify(context?.mesh.owners ?? []);
    } else if (row && target.dataset.part) {
      const rows = axisRows();
      rows[row.dataset.row][target.dataset.part] = target.value;
      state.mesh = meshOf(rows);
    } else if (target.dataset.axis !== undefined) {
      assign(target.dataset.axis, target.value === "" ? null : Number(target.value));
      return;
    } else if (target.id === "filter") {
      draw();
      return;
    } else {
      return;
    }
    if (target.id !== "rules") passing.step = 0;
    update();
  }
  document.addEventListener("input", (event) => event.target.matches("select") || changed(event));
  document.addEventListener("change", (event) => event.target.matches("select") && changed(event));

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const { remove, copy, device, sort } = button.dataset;
    if (button.id === "add-axis") {
      const rows = axisRows();
      const names = rows.map(([name]) => name);
      const fresh = ["pod", "seq", "x", "y", "z"].find((name) => !names.includes(name)) ?? `axis${names.length}`;
      state.mesh = meshOf([...rows, [fresh, "1"]]);
      update();
    } else if (remove !== undefined && axisRows().length > 1) {
      state.mesh = meshOf(axisRows().filter((_, k) => k !== Number(remove)));
      update();
      $("add-axis").focus();
    } else if (button.getAttribute("role") === "tab") {
      choose(button.id.slice("tab-".length));
    } else if (button.id === "back" || button.id === "next") {
      passing.step = Math.max(0, Math.min(passing.last, passing.step + (button.id === "next" ? 1 : -1)));
      draw();
    } else if (button.id === "more") {
      passing.shown += files.PAGE;
      draw();
    } else if (sort) {
      passing.sort = files.nextSort(passing.sort, sort);
      draw();
    } else if (copy) {
      const text = $(copy).value ?? $(copy).textContent;
      await navigator.clipboard.writeText(text).then(
        () => ($("status").textContent = `Copied the ${copy}.`),
        () => ($("status").textContent = `This browser does not let a page copy: select the ${copy} by hand.`));
    } else if (device !== undefined) {
      state.process = String(context.mesh.owners[device]);
      update();
    }
  });

  function choose(tab) {
    state.tab = tab;
    update();
    $(`tab-${tab}`).focus();
  }

  $("tabs").addEventListener("keydown", (event) => {
    const at = TABS.indexOf(state.tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(TABS.at(to % TABS.length));
  });

  // Devices: pointed at, or reached by arrow keys within one picture.
  function point(chip) {
    if (!chip || !context) return;
    for (const other of document.querySelectorAll(".chip")) {
      other.classList.toggle("hot", other.dataset.device === chip.dataset.device);
    }
    fill($("detail"), layout.detail(context, Number(chip.dataset.device)));
  }
  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, (event) => point(event.target.closest?.(".chip")));
  }

  $("panel-layout").addEventListener("keydown", (event) => {
    const chip = event.target.closest(".chip");
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!chip || (!along && !down)) return;
    event.preventDefault();
    const all = [...chip.closest("figure").querySelectorAll(".chip")];
    let next = all[all.indexOf(chip) + (along ?? 0)];
    if (down) {
      const [column, table] = [chip.closest("td").cellIndex, chip.closest("table")];
      const stacked = all.filter((other) => other.closest("td").cellIndex === column && other.closest("table") === table);
      next = stacked[stacked.indexOf(chip) + down];
    }
    if (!next) return;
    chip.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  // An axis is dragged by pointer events, which are there for touch too.
  document.addEventListener("pointerdown", (event) => {
    const from = event.target.closest?.("[data-drag]");
    if (!from) return;
    event.preventDefault();
    const ghost = document.body.appendChild(from.cloneNode(true));
    ghost.classList.add("dragged");
    const zoneAt = ({ clientX, clientY }) => document.elementFromPoint(clientX, clientY)?.closest("[data-zone]") ?? null;
    const ending = new AbortController();
    const move = (moved) => {
      ghost.style.left = `${moved.clientX + 6}px`;
      ghost.style.top = `${moved.clientY + 6}px`;
      const over = zoneAt(moved);
      for (const zone of document.querySelectorAll("[data-zone]")) zone.classList.toggle("over", zone === over);
    };
    const end = (dropped) => {
      ending.abort();
      ghost.remove();
      for (const zone of document.querySelectorAll(".over")) zone.classList.remove("over");
      const zone = dropped.type === "pointerup" ? zoneAt(dropped) : null;
      if (zone) assign(from.dataset.drag, zone.dataset.zone === "" ? null : Number(zone.dataset.zone));
    };
    move(event);
    document.addEventListener("pointermove", move, ending);
    document.addEventListener("pointerup", end, ending);
    document.addEventListener("pointercancel", end, ending);
  });

  async function take(file) {
    if (!file) return;
    passing.shown = files.PAGE;
    try {
      passing.file = await files.read(file);
    } catch (error) {
      if (!(error instanceof words.PlanError)) throw error;
      showError(`${error.kind}: ${error.message}`);
      return;
    }
    draw();
  }
  $("file").addEventListener("change", (event) => take(event.target.files[0]));
  // A file that misses the box must not replace the page.
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer?.files.length) {
      state.tab = "model";
      update();
      take(event.dataTransfer.files[0]);
    }
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => {
    readLink();
    update();
  });

  fill($("dtypes"), Object.keys(words.ITEMSIZES).map((value) => el("option", { value })));
  Object.assign(state, JSON.parse($("start").textContent));
  readLink();
  update();
})();
