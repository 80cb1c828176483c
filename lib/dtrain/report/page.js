"use strict";
// Draws the page from its embedded data. Text from runs only becomes text nodes, never markup.
(() => {
  const began = performance.now();
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs;
  // At least 23 apart in CIELAB and readable on light and dark backgrounds; further runs repeat them with dashes.
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6fd1", "#b58900", "#56a8d6", "#7a7a7a", "#7700ff", "#00cc00",
    "#ff00cc", "#ff0066", "#558800", "#994433", "#ff0022", "#0055ff", "#bb0077", "#ccaa77", "#9922bb", "#666622"];
  const DASHES = ["none", "6 3", "2 3", "9 3 2 3"];
  runs.forEach((run, index) => {
    run.color = COLORS[index % COLORS.length];
    run.dashes = DASHES[Math.floor(index / COLORS.length) % DASHES.length];
    run.shown = true;
    run.boxes = [];
  });
  const view = { axis: "step", smoothing: 0, log: false, clip: false };

  // Creates an element with attributes and children; a text becomes a text node.
  function element(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children.filter((child) => child !== null && child !== ""));
    return node;
  }
  function drawn(name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  const swatch = (run) => element("span", { class: "swatch", style: `background:${run.color}` });

  // ---- numbers ----
  const isNumber = (value) => typeof value === "number";
  // Four digits. Tables keep trailing zeros, so that their columns align.
  function digits(value, keep) {
    const text = value.toPrecision(4);
    return keep && !text.includes("e") ? text : String(Number(text));
  }
  function short(value, keep = false) {
    if (!isNumber(value)) return value === undefined || value === null ? "–" : String(value);
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e12 || size < 1e-3) return String(Number(value.toPrecision(3)));
    for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      if (size >= unit) return `${digits(value / (letter === "k" ? 1e3 : unit), keep)}${letter}`;
    }
    return digits(value, keep && !Number.isInteger(value));
  }
  function bytes(value, keep = false) {
    if (!isNumber(value)) return short(value);
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    for (; value >= 1024 && power + 1 < units.length; ++power) value /= 1024;
    return `${digits(value, keep)} ${units[power]}`;
  }
  function seconds(value) {
    if (!isNumber(value)) return short(value);
    if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
    if (value < 60) return `${Number(value.toPrecision(3))} s`;
    if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
    return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  }
  const count = (value) => (isNumber(value) ? value.toLocaleString("en") : short(value));
  const SHOWN = { text: String, number: short, count, bytes, seconds };

  const CHARTS = [
    { key: "loss", title: "Training loss", unit: "nats per token" },
    { key: "val_loss", title: "Validation loss", unit: "nats per token", dots: true },
    { key: "bits_per_byte", title: "Validation, by byte", unit: "bits per byte", dots: true },
    { key: "perplexity_per_word", title: "Validation, by word", unit: "perplexity per word", dots: true },
    { key: "grad_norm", title: "Gradient norm", unit: "before clipping" },
    { key: "learning_rate", title: "Learning rate", unit: "" },
    { key: "tokens_per_second", title: "Tokens per second", unit: "all ranks" },
    { key: "step_seconds", title: "Time of a step", unit: "seconds", format: seconds },
    { key: "wait_seconds", title: "Waiting for other ranks", unit: "seconds of a step, rank 0", format: seconds },
    { key: "memory_bytes", title: "Peak memory of tensors", unit: "rank 0", format: bytes },
    { key: "comm_bytes", title: "Sent in a step", unit: "rank 0", format: bytes },
    { key: "mfu", title: "Model FLOP utilisation", unit: "share of the measured peak" },
    { key: "loss_scale", title: "Loss scale", unit: "of float16" },
  ];

  // ---- curves ----
  // The position of a step on the chosen axis, interpolated between known steps.
  function placeOn(run, step) {
    if (view.axis === "step") return step;
    const { steps, values } = run.curves[view.axis] || { steps: [], values: [] };
    if (steps.length === 0) return step;
    let low = 0, high = steps.length - 1;
    if (step <= steps[0]) return steps[0] === 0 ? values[0] : (values[0] * step) / steps[0];
    if (step >= steps[high]) return values[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    const share = (step - steps[low]) / (steps[high] - steps[low]);
    return values[low] + share * (values[high] - values[low]);
  }
  function smoothed(values) {
    let mean = 0, weight = 0;
    return values.map((value) => {
      if (!isNumber(value)) return value;
      mean = view.smoothing * mean + (1 - view.smoothing) * value;
      weight = view.smoothing * weight + (1 - view.smoothing);
      return mean / weight;
    });
  }
  // The positions of round numbers on an axis from low to high.
  function ticks(low, high, wanted, format) {
    const unit = format === bytes ? 1024 ** Math.floor(Math.log2(Math.max(1, high)) / 10) : 1;
    const rough = (high - low) / wanted / unit, power = unit * 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * unit);
    const places = [];
    for (let place = Math.ceil(low / step) * step; place <= high + step * 1e-9; place += step) {
      places.push(Math.abs(place) < step * 1e-9 ? 0 : place);
    }
    return places;
  }
  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
    return low > high ? null : low === high && low === 0 ? [0, 1] : low === high ? [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10] : [low, high];
  }

  function lineOf(run, chart) {
    const curve = run.curves[chart.key];
    if (!curve || !run.shown) return null;
    const usable = (value) => isNumber(value) && (!view.log || value > 0);
    const places = curve.steps.map((step) => placeOn(run, step));
    return { run, curve, places, usable, even: view.smoothing > 0 && !chart.dots ? smoothed(curve.values) : null };
  }
  function pathOf(line, values, toX, toY) {
    let path = "", pen = "M";
    values.forEach((value, index) => {
      if (!line.usable(value)) { pen = "M"; return; }
      path += `${pen}${toX(line.places[index]).toFixed(1)} ${toY(value).toFixed(1)}`;
      pen = "L";
    });
    return path;
  }

  function draw(figure, chart) {
    const svg = figure.querySelector("svg");
    const lines = runs.map((run) => lineOf(run, chart)).filter((line) => line !== null);
    const width = figure.clientWidth - 20, height = 220, left = 64, right = 8, top = 8, bottom = 22;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const scaled = (value) => (view.log ? Math.log10(value) : value);
    const heights = lines.flatMap((line) => line.curve.values.filter(line.usable).map(scaled));
    // A single diverged run would flatten all others.
    if (view.clip) heights.sort((a, b) => a - b).splice(Math.ceil(heights.length * 0.9));
    const vertical = extent(heights);
    const horizontal = extent(lines.flatMap((line) => line.places));
    if (!vertical || !horizontal || width < 100) { figure.lines = null; return; }
    const pad = (vertical[1] - vertical[0]) * 0.04;
    // Figures are never negative, so the axis does not extend below 0.
    const floor = view.log || vertical[0] < 0 ? -Infinity : 0;
    const [low, high] = [Math.max(floor, vertical[0] - pad), vertical[1] + pad];
    const toX = (place) => left + ((place - horizontal[0]) / (horizontal[1] - horizontal[0])) * (width - left - right);
    const toY = (value) => top + ((high - scaled(value)) / (high - low)) * (height - top - bottom);
    const format = chart.format || short;
    for (const tick of ticks(low, high, 5, view.log ? short : format)) {
      const value = view.log ? 10 ** tick : tick, y = toY(value);
      svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }),
        drawn("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, format(value)));
    }
    const onAxis = view.axis === "seconds" ? seconds : short;
    for (const tick of ticks(horizontal[0], horizontal[1], Math.max(2, width / 75), short)) {
      const x = toX(tick), anchor = x > width - right - 16 ? "end" : "middle";
      svg.append(drawn("text", { x: anchor === "end" ? width - 1 : x, y: height - 6, "text-anchor": anchor }, onAxis(tick)));
    }
    for (const line of lines) {
      if (line.even) {
        svg.append(drawn("path", { class: "raw", stroke: line.run.color, d: pathOf(line, line.curve.values, toX, toY) }));
      }
      svg.append(drawn("path", { stroke: line.run.color, "stroke-dasharray": line.run.dashes,
        d: pathOf(line, line.even || line.curve.values, toX, toY) }));
      if (!chart.dots) continue;
      line.curve.values.forEach((value, index) => {
        if (!line.usable(value)) return;
        svg.append(drawn("circle", { cx: toX(line.places[index]), cy: toY(value), r: 2.5, fill: line.run.color }));
      });
    }
    figure.lines = { lines, toX, width, height, top, bottom };
  }

  function nearest(places, place) {
    let low = 0, high = places.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (places[middle] <= place) low = middle; else high = middle;
    }
    return Math.abs(places[low] - place) <= Math.abs(places[high] - place) ? low : high;
  }
  // Shows the figures under the pointer.
  function point(figure, chart, event) {
    const area = figure.lines, svg = figure.querySelector("svg"), tip = figure.querySelector(".tip");
    svg.querySelector(".cursor")?.remove();
    tip.hidden = !area || event.type === "pointerleave";
    if (tip.hidden) return;
    const x = ((event.clientX - svg.getBoundingClientRect().left) * area.width) / svg.clientWidth;
    svg.append(drawn("line", { class: "cursor", x1: x, x2: x, y1: area.top, y2: area.height - area.bottom }));
    const format = chart.format || short;
    tip.replaceChildren(...area.lines.map((line) => {
      const [first, second] = [line.places[0], line.places[line.places.length - 1]];
      const place = first + ((x - area.toX(first)) / (area.toX(second) - area.toX(first) || 1)) * (second - first);
      const index = nearest(line.places, place);
      return element("div", {}, swatch(line.run), `step ${count(line.curve.steps[index])}: ${format(line.curve.values[index])}`);
    }));
    tip.style.left = x < area.width / 2 ? `${x + 24}px` : "auto";
    tip.style.right = x < area.width / 2 ? "auto" : `${area.width - x + 24}px`;
  }

  function chartOf(chart) {
    const figure = element("figure", { "data-key": chart.key },
      element("figcaption", {}, chart.title, " ", element("small", {}, chart.unit)), element("div", { class: "tip", hidden: "" }));
    figure.insertBefore(drawn("svg", { role: "img", "aria-label": chart.title }), figure.lastChild);
    for (const name of ["pointermove", "pointerdown", "pointerleave"]) {
      figure.addEventListener(name, (event) => point(figure, chart, event));
    }
    return figure;
  }

  // ---- tables ----
  function table(head, rows) {
    const line = (cells, name) => element("tr", {}, ...cells.map((cell) => element(name, {}, cell)));
    return element("div", { class: "scroll" },
      element("table", {}, element("thead", {}, line(head, "th")), element("tbody", {}, ...rows.map((row) => line(row, "td")))));
  }
  const facts = (pairs) => element("dl", {}, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));

  const stateOf = (run, text) => element("span", { class: `state ${run.state_kind}`, title: run.state }, text);
  // A checkbox that shows or hides a run's curves; all checkboxes of a run are synchronised.
  function tick(run) {
    const box = element("input", { type: "checkbox", checked: "", "aria-label": `show ${run.name}` });
    run.boxes.push(box);
    box.addEventListener("change", () => {
      run.shown = box.checked;
      for (const other of run.boxes) {
        other.checked = run.shown;
        other.closest(".card, tr").classList.toggle("hidden", !run.shown);
      }
      drawAll();
    });
    return box;
  }
  function card(run) {
    return element("div", { class: "card", style: `border-top-color:${run.color}` }, element("label", {}, tick(run), " ", run.name),
      facts([["state", stateOf(run, run.state)], ...run.summary.map(([name, value, kind]) => [name, SHOWN[kind](value)])]));
  }

  // Keys of settings that differ between runs.
  const settingOf = (run, key) => run.settings[key] ?? "–";
  const differing = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))]
    .filter((key) => key !== "run.dir" && runs.some((run) => settingOf(run, key) !== settingOf(runs[0], key)));
  function differences() {
    const rows = differing.map((key) => [key, ...runs.map((run) => settingOf(run, key))]);
    const sizes = runs.map((run) => count(run.figures.parameters));
    return new Set(sizes).size > 1 ? [["parameters", ...sizes], ...rows] : rows;
  }

  // ---- the table of runs ----
  const figure = (title, key, format) => ({ title, value: (run) => run.figures[key], cell: (run) => format(run.figures[key], true) });
  const COLUMNS = [
    { title: "run", value: (run) => run.name, cell: (run) => element("label", {}, tick(run), " ", swatch(run), run.name) },
    { title: "state", value: (run) => run.state_kind, cell: (run) => stateOf(run, run.state_kind) },
    figure("training loss", "loss", short), figure("validation loss", "val_loss", short), figure("lowest", "lowest_val_loss", short),
    figure("steps", "steps", count), figure("parameters", "parameters", count), figure("tokens", "tokens", count),
    figure("tokens/s", "tokens_per_second", short), figure("time", "seconds", seconds), figure("peak memory", "memory", bytes),
    ...differing.map((key) => ({ title: key, value: (run) => run.settings[key], cell: (run) => settingOf(run, key) })),
  ];
  // Numbers before texts, "run-2" before "run-10", unknown values last in either direction.
  function compared(a, b) {
    const numbers = [a, b].map((value) => (value === "" ? NaN : Number(value)));
    if (numbers.every((value) => !Number.isNaN(value))) return numbers[0] - numbers[1];
    return Number.isNaN(numbers[0]) - Number.isNaN(numbers[1]) || String(a).localeCompare(String(b), "en", { numeric: true });
  }
  function sortRows(column, rows, direction) {
    const isKnown = ([run]) => column.value(run) !== undefined && column.value(run) !== null && column.value(run) !== "nan";
    const known = rows.filter(isKnown).sort(([a], [b]) => direction * compared(column.value(a), column.value(b)));
    return [...known, ...rows.filter((row) => !isKnown(row))];
  }
  function tableOfRuns() {
    const columns = COLUMNS.filter((column) => runs.some((run) => column.value(run) !== undefined && column.value(run) !== null));
    const rows = runs.map((run) => [run, element("tr", {}, ...columns.map((column) => element("td", {}, column.cell(run))))]);
    const body = element("tbody", {}, ...rows.map(([, row]) => row));
    const heads = columns.map((column) => element("th", { "aria-sort": "none" }, element("button", { type: "button" }, column.title)));
    heads.forEach((head, index) => head.firstChild.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", order);
      body.append(...sortRows(columns[index], rows, order === "ascending" ? 1 : -1).map(([, row]) => row));
    }));
    return element("div", { class: "scroll" }, element("table", { id: "runs" }, element("thead", {}, element("tr", {}, ...heads)), body));
  }

  function startOf(start) {
    return [start.started, start.ranks, start.layout, start.machine, start.version, start.reason];
  }
  function detailsOf(run) {
    const parts = [facts(run.layout.map(([name, value, kind]) => [name, SHOWN[kind](value)]))];
    parts.push(element("h3", {}, "Starts"), table(["at", "ranks", "layout", "machine", "version", "after"], run.starts.map(startOf)));
    if (run.checkpoints.length > 0) {
      parts.push(element("h3", {}, "Checkpoints"), table(["step", "size", "stall", "write time", "now"],
        run.checkpoints.map((each) => [count(each.step), bytes(each.bytes), seconds(each.stall_seconds), seconds(each.seconds), each.now])));
    }
    if (run.warnings.length > 0) {
      parts.push(element("h3", { class: "bad" }, `Warnings (${count(run.warnings.length)})`),
        table(["step", "message"], run.warnings.map((each) => [count(each.step), each.message])));
    }
    if (run.samples.length > 0) {
      parts.push(element("h3", {}, "Samples"),
        ...run.samples.map((each) => element("div", {}, element("small", {}, `step ${count(each.step)}`), element("pre", {}, each.text))));
    }
    parts.push(element("h3", {}, "Command"), element("pre", {}, run.command));
    parts.push(element("details", {}, element("summary", {}, "All settings", run.starts.length > 1 ? ` of the last of ${count(run.starts.length)} starts` : ""), table(["setting", "value"], Object.entries(run.settings))));
    const open = runs.length === 1 ? { open: "" } : {};
    return element("details", open, element("summary", {}, swatch(run), run.name, run.warnings.length > 0
      ? element("small", { class: "bad" }, ` ${count(run.warnings.length)} warnings`) : ""), ...parts);
  }

  function controls() {
    const axis = element("select", {}, ...[["step", "steps"], ["tokens", "tokens"], ["seconds", "time in steps"]]
      .map(([value, text]) => element("option", { value }, text)));
    const smoothing = element("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: "0" });
    const log = element("input", { type: "checkbox" });
    const clip = element("input", { type: "checkbox" });
    const follow = (node, name, read) => node.addEventListener(name, () => { read(); drawAll(); });
    follow(axis, "change", () => { view.axis = axis.value; });
    follow(smoothing, "input", () => { view.smoothing = Number(smoothing.value); });
    follow(log, "change", () => { view.log = log.checked; });
    follow(clip, "change", () => { view.clip = clip.checked; });
    return element("div", { class: "controls" }, element("label", {}, "over", axis), element("label", {}, "smoothing", smoothing),
      element("label", {}, log, "logarithmic"), element("label", {}, clip, "clip the highest tenth"));
  }

  // ---- the page ----
  const MANY = 6;  // more runs than this get their cards collapsed below the table
  // Charts of zeros, as of waits on a single rank, are omitted.
  const says = (run, chart) => run.curves[chart.key]?.values.some((value) => value !== 0);
  const charts = CHARTS.filter((chart) => runs.some((run) => says(run, chart))).map((chart) => [chartOf(chart), chart]);
  function drawAll() { for (const [figure, chart] of charts) draw(figure, chart); }
  const main = document.querySelector("main");
  const cards = element("section", { class: "cards" }, ...runs.map(card));
  if (runs.length > 1) main.append(tableOfRuns());
  main.append(runs.length > MANY ? element("details", {}, element("summary", {}, "Cards"), cards) : cards, element("h2", {}, "Curves"),
    controls(), element("section", { class: "charts" }, ...charts.map(([node]) => node)));
  if (runs.length > 1) {
    const rows = differences();
    const resumed = runs.some((run) => run.starts.length > 1) ? element("p", { class: "quiet" }, "For resumed runs: the settings of the last launch.") : "";
    main.append(element("h2", {}, "Settings that differ"), resumed, rows.length === 0 ? element("p", { class: "quiet" }, "none")
      : table(["setting", ...runs.map((run) => run.name)], rows));
  }
  main.append(element("h2", {}, "Runs"), ...runs.map(detailsOf));
  drawAll();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  document.getElementById("written").append(`Written by ${data.version} on ${data.written}. Drawn in ${Math.round(performance.now() - began)} ms.`);
})();
