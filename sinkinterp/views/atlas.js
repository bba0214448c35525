// The page: overview of heads, all maps small, one head with zoom. Words from data are only ever set as text.

const $ = (id) => document.getElementById(id);
const about = JSON.parse($("about").textContent);
const { tokens, side, rows, columns, states, stats, scales, places, layers } = about;
const tables = Object.fromEntries(Object.entries(scales).map(([name, scale]) => [name, tableOf(scale)]));
const palette = paletteOf(about.colours.sequential);
const both = states.length === 2;
const PIXELS = 560; // cells of a tile at most, each way
const view = { place: 0, state: 0, map: 0, channel: "weight", scale: tokens.length > 128 ? "log" : "linear", mean: false };
const MARKS = { "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "·" };
const seen = (word) => word.replace(/[\n\r\t ]/g, (c) => MARKS[c]).replace(/[\u0000-\u001f\u007f-\u009f]/g, "\ufffd");
// Plotly reads a few tags and entities in labels; with these three gone it reads none
const label = (word) => word.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (word) => (word.length > 12 ? `${word.slice(0, 11)}…` : word);
const placed = (place) => (place < 0 ? "* (off the sequence)" : `${place} ‘${seen(tokens[place])}’`);

/** A number in as many digits as its codes hold. */
function number(x, { log, bits, step }) {
  if (!log) return x.toFixed(Math.max(0, Math.min(4, Math.floor(-Math.log10(step)))));
  const digits = bits > 8 ? 3 : 2;
  return x !== 0 && Math.abs(x) < 1e-3 ? x.toExponential(digits - 1) : x.toPrecision(digits);
}


/* Data: blocks are unpacked when they are first asked for. */

const unpacked = new Map();
function block(id) {
  if (!unpacked.has(id)) unpacked.set(id, bytesOf(id));
  return unpacked.get(id);
}

function slotInLayer(map) {
  const [layer] = about.maps[map];
  return about.maps.slice(0, map).filter(([other]) => other === layer).length;
}

async function levelOf(name, state, map, mean) {
  const [layer] = about.maps[map];
  const size = rows * columns, stat = mean && stats.length > 1 ? 1 : 0;
  const bytes = await block(`${name.replaceAll(" ", "-")}-${state}-${layer}`);
  const pairs = await block(about.pairs[layer]);
  const from = (slotInLayer(map) * stats.length + stat) * size;
  return { values: decoded(bytes, tables[name], from, size), rows, columns, pairs: new Uint32Array(pairs.buffer) };
}

async function slotOf(state, map, mean) {
  const stat = mean && stats.length > 1 ? 1 : 0;
  const bytes = await block(`slot-${state}-${about.maps[map][0]}`);
  const runs = new Uint32Array(rows).fill(side);
  runs[rows - 1] = tokens.length - (rows - 1) * side;
  const values = decoded(bytes, tables.weight, (slotInLayer(map) * stats.length + stat) * rows, rows);
  return { values, rows, columns: 1, pairs: runs };
}

/* What is shown of the numbers: weights on one of three scales, other channels as they are. */

const isRank = () => view.channel === "weight" && view.scale === "rank";
const isLog = () => view.channel === "weight" && view.scale === "log";
const shown = (value) => (isLog() ? Math.log10(Math.max(value, floor())) : value);
const floor = () => Math.max(scales.weight.low, 1e-6 * scales.weight.high);

function range() {
  const { low, high } = scales[view.channel];
  if (isRank()) return [0, 1];
  if (isLog()) return [Math.log10(floor()), Math.log10(high)];
  if (view.channel === "weight" || view.channel === "norm product") return [0, high];
  const most = view.channel === "cosine" ? 1 : Math.max(Math.abs(low), Math.abs(high));
  return [-most, most];
}

function colours() {
  const [low, high] = range();
  const bar = { title: { text: label(barTitle()), side: "right" }, thickness: 14, outlinewidth: 0 };
  if (isLog()) {
    bar.tickvals = Array.from({ length: 13 }, (_, i) => -i);
    bar.ticktext = bar.tickvals.map((power) => (power > -4 ? String(10 ** power) : `1e${power}`));
  }
  const colorscale = low < 0 && !isLog() ? about.colours.diverging : about.colours.sequential;
  return { cmin: low, cmax: high, colorscale, colorbar: bar };
}

function barTitle() {
  const what = side > 1 ? `${stats[view.mean ? 1 : 0]} ${view.channel} of a cell` : view.channel;
  if (isRank()) return `share of the row's cells that are no larger (by ${what})`;
  return { weight: "attention weight", cosine: "cos(q, k)", score: "score", "norm product": "|q| |k| × scale" }[
    view.channel
  ] + (side > 1 ? `, ${stats[view.mean ? 1 : 0]} of a cell` : "") + (isLog() ? " (log)" : "");
}

/* Hover: words beside the pointer. */

function tell(event, words) {
  const tip = $("tip");
  tip.textContent = words;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8))}px`;
}
const hush = () => { $("tip").hidden = true; };

/* Figures. */

const layoutOf = (more) => ({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: getComputedStyle(document.body).color },
  ...more,
});
const AXIS = { showgrid: false, zeroline: false, ticks: "outside", tickcolor: "#888", linecolor: "#888", showline: true };
const CONFIG = { displaylogo: false, doubleClick: false, modeBarButtonsToRemove: ["autoScale2d", "resetScale2d", "toImage"] };

let alphas = []; // importance by state: layer x head x place
const alpha = (state, layer, head) => alphas[state][(layer * about.heads + head) * places.length + view.place];

async function loadAlphas() {
  const count = layers.length * about.heads * places.length;
  alphas = await Promise.all(states.map(async (_, i) => decoded(await block(`importance-${i}`), tables.importance, 0, count)));
}

async function drawOverview() {
  const change = view.state === 2;
  const z = layers.map((_, l) => Array.from({ length: about.heads }, (_, h) =>
    change ? alpha(1, l, h) - alpha(0, l, h) : alpha(view.state, l, h)));
  const most = change ? Math.max(1e-6, ...z.flat().map(Math.abs)) : 1;
  const trace = {
    type: "heatmap", z, x0: 0, dx: 1, y: layers.map(String), hoverinfo: "none", xgap: 1, ygap: 1,
    zmin: change ? -most : 0, zmax: most, colorscale: about.colours[change ? "diverging" : "sequential"],
    colorbar: { title: { text: change ? "change of importance" : "importance", side: "right" }, thickness: 14, outlinewidth: 0 },
  };
  const [layer, head] = about.maps[view.map];
  const y = layers.indexOf(layer);
  const mark = getComputedStyle(document.documentElement).getPropertyValue("--mark").trim();
  const height = 130 + Math.max(180, Math.min(layers.length * 22, 640));
  await Plotly.react("overview", [trace], layoutOf({
    height, margin: { l: 56, r: 10, t: 10, b: 48 }, dragmode: false,
    xaxis: { ...AXIS, title: { text: "head" }, fixedrange: true, dtick: about.heads > 32 ? 8 : about.heads > 16 ? 2 : 1 },
    yaxis: { ...AXIS, title: { text: "layer" }, fixedrange: true, autorange: "reversed", type: "category" },
    shapes: [{ type: "rect", x0: head - 0.5, x1: head + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color: mark, width: 2 } }],
  }), { ...CONFIG, displayModeBar: false });
  $("overview").dataset.shown = `${view.state}-${view.place}`;
}

function listenToOverview() {
  $("overview").on("plotly_click", ({ points: [{ pointIndex: [l, h] }] }) => openHead(layers[l], h));
  $("overview").on("plotly_hover", ({ event, points: [{ pointIndex: [l, h] }] }) => {
    const lines = states.map((name, i) => `${both ? `${name}: ` : "importance "}${number(alpha(i, l, h), scales.importance)}`);
    if (both) lines.push(`change: ${number(alpha(1, l, h) - alpha(0, l, h), scales.importance)}`);
    tell(event, [`layer ${layers[l]}, head ${h}, position ${placed(places[view.place])}`, ...lines].join("\n"));
  });
  $("overview").on("plotly_unhover", hush);
}

/* All maps, small, on one canvas. */

const LEFT = 34, TOP = 16, GAP = 3;
let grid = { size: 0, cells: [] };

function laidOut() {
  const across = Math.min(about.heads, about.maps.length), width = $("maps").clientWidth - 18;
  const size = Math.max(14, Math.min(90, Math.floor((width - LEFT) / across) - GAP));
  const lines = [...new Set(about.maps.map(([layer]) => layer))];
  const cells = about.maps.map(([layer, head], map) => {
    const column = about.maps.length < about.heads ? map : head;
    return [LEFT + column * (size + GAP), TOP + lines.indexOf(layer) * (size + GAP)];
  });
  return { size, cells, lines, width: LEFT + across * (size + GAP), height: TOP + lines.length * (size + GAP) };
}

async function drawThumbs(turn) {
  grid = laidOut();
  const canvas = $("thumbs"), ratio = window.devicePixelRatio || 1, context = canvas.getContext("2d");
  [canvas.width, canvas.height] = [grid.width * ratio, grid.height * ratio];
  [canvas.style.width, canvas.style.height] = [`${grid.width}px`, `${grid.height}px`];
  context.scale(ratio, ratio);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.fillStyle = getComputedStyle(document.body).color;
  grid.lines.forEach((layer, i) => context.fillText(`L${layer}`, 2, TOP + i * (grid.size + GAP) + grid.size / 2 + 4));
  for (let head = 0; head < about.heads && about.maps.length >= about.heads; head += grid.size < 22 ? 4 : 1) {
    context.fillText(String(head), LEFT + head * (grid.size + GAP) + 2, 11);
  }
  for (let map = 0; map < about.maps.length; map++) {
    const level = await levelOf("weight", view.state === 1 ? 1 : 0, map, view.mean);
    if (turn !== thumbTurn) return;
    context.putImageData(thumb(view.scale === "rank" ? ranked(level) : level, Math.round(grid.size * ratio)),
      grid.cells[map][0] * ratio, grid.cells[map][1] * ratio);
    if (map % 64 === 63) await new Promise((resolve) => setTimeout(resolve));
  }
  $("maps").dataset.drawn = `${view.scale}-${view.mean}`;
}

function thumb(level, pixels) {
  const image = new ImageData(pixels, pixels), most = scales.weight.high, low = Math.log(floor()), span = Math.log(most) - low;
  const share = { linear: (x) => x / most, log: (x) => (Math.log(Math.max(x, floor())) - low) / span, rank: (x) => x }[view.scale];
  const edges = (n) => Array.from({ length: pixels + 1 }, (_, i) => Math.floor((i * n) / pixels));
  const [down, right] = [edges(rows), edges(columns)];
  for (let y = 0, at = 0; y < pixels; y++) {
    for (let x = 0; x < pixels; x++, at += 4) {
      const box = [down[y], Math.max(down[y + 1], down[y] + 1), right[x], Math.max(right[x + 1], right[x] + 1)];
      const value = gathered(level, box, view.mean);
      if (value !== value) continue;
      image.data.set(palette[Math.max(0, Math.min(255, Math.round(255 * share(value))))], at);
      image.data[at + 3] = 255;
    }
  }
  return image;
}

let thumbTurn = 0;
const redrawThumbs = () => (about.maps.length > 1 ? drawThumbs(++thumbTurn) : undefined);

function thumbAt(event) {
  return grid.cells.findIndex(([x, y]) => event.offsetX >= x && event.offsetX < x + grid.size && event.offsetY >= y && event.offsetY < y + grid.size);
}

/* One head. */

const whole = () => [-0.5, tokens.length - 0.5, -0.5, tokens.length - 0.5]; // queries, keys
let zoom = whole();
let open = null; // of the head shown: by state, levels of every channel, ranks, and the slot

async function openHead(layer, head) {
  const map = about.maps.findIndex(([l, h]) => l === layer && h === head);
  if (map < 0) return;
  view.map = map;
  zoom = whole();
  await loadHead();
  [$("layer").value, $("which").value] = [layer, head];
  $("head-title").textContent = `Layer ${layer}, head ${head}`;
  await drawHead();
  history.replaceState(null, "", `#L${layer}H${head}`);
  markOpen(layer, head);
  document.body.dataset.head = `${layer}-${head}`;
}

function markOpen(layer, head) {
  const y = layers.indexOf(layer);
  if ($("overview").data) {
    Plotly.relayout("overview", { "shapes[0].x0": head - 0.5, "shapes[0].x1": head + 0.5, "shapes[0].y0": y - 0.5, "shapes[0].y1": y + 0.5 });
  }
}

async function loadHead() {
  const means = stats.length > 1 ? [false, true] : [false];
  open = await Promise.all(states.map(async (_, state) => ({
    channels: Object.fromEntries(await Promise.all(Object.keys(scales).filter((name) => name !== "importance").map(
      async (name) => [name, await Promise.all(means.map((mean) => levelOf(name, state, view.map, mean)))]))),
    slot: about.slot ? await Promise.all(means.map((mean) => slotOf(state, view.map, mean))) : null,
    ranks: [],
  })));
}

const statIndex = () => (view.mean && stats.length > 1 ? 1 : 0);

function levelShown(state) {
  const { channels, ranks } = open[state], stat = statIndex();
  if (!isRank()) return channels[view.channel][stat];
  ranks[stat] ??= ranked(channels.weight[stat]);
  return ranks[stat];
}

/** The cells in view and how many of them, each way, one pixel gathers. */
function tile() {
  const within = (x, n) => Math.max(0, Math.min(n, x));
  const [q0, q1, k0, k1] = zoom;
  const box = [
    within(Math.floor((q0 + 0.5) / side), rows - 1), within(Math.ceil((q1 + 0.5) / side), rows),
    within(Math.floor((k0 + 0.5) / side), columns - 1), within(Math.ceil((k1 + 0.5) / side), columns),
  ];
  const most = both ? PIXELS / 2 : PIXELS;
  return { box, by: Math.max(1, Math.ceil(Math.max(box[1] - box[0], box[3] - box[2]) / most)) };
}

/** Before, after, and after less before; or the only state. */
function panels() {
  const names = both ? [...states, "difference"] : [""];
  return names.map((name, i) => ({ name, state: Math.min(i, 1), minus: i === 2 }));
}

function panelRows(levelOfState, panel, box, by) {
  const [one, other] = (panel.minus ? [1, 0] : [panel.state]).map((state) => pooled(levelOfState(state), box, by, view.mean));
  return panel.minus ? one.map((row, r) => row.map((value, c) => value - other[r][c])) : one.map((row) => row.map(shown));
}

const hasStrip = () => about.slot && view.channel === "weight" && !isRank();
const axisName = (n) => (n === 1 ? "x" : `x${n}`);

async function drawHead() {
  const { box, by } = tile(), span = by * side, middle = (first) => first * side + (span - 1) / 2;
  const traces = panels().flatMap((panel, i) => {
    const common = {
      type: "heatmap", hoverinfo: "none", hoverongaps: false, yaxis: "y", y0: middle(box[0]), dy: span,
      coloraxis: panel.minus ? "coloraxis2" : "coloraxis",
    };
    const z = panelRows(levelShown, panel, box, by);
    const map = { ...common, z, x0: middle(box[2]), dx: span, xaxis: axisName(i + 1), meta: { box, by } };
    if (!hasStrip()) return [map];
    const column = panelRows((state) => open[state].slot[statIndex()], panel, [box[0], box[1], 0, 1], by);
    return [map, { ...common, z: column, x0: 0, dx: 1, xaxis: axisName(i + 4), meta: { box, by, slot: true } }];
  });
  await Plotly.react("map", traces, frame(traces), CONFIG);
  $("map").dataset.tile = [...box, by].join();
}

/** Axes with token labels, one colour bar, and one for the difference. */
function frame(traces) {
  const count = panels().length, strip = hasStrip() ? 0.04 : 0;
  const width = Math.min($("map").clientWidth, count > 1 ? 1480 : 920), height = Math.min(720, Math.max(420, width * (count > 1 ? 0.42 : 0.86)));
  const [q0, q1, k0, k1] = zoom, each = 1 / count, keys = { ...AXIS, ...labelled(k0, k1, count > 1 ? 14 : 28), tickangle: -90, range: [k0, k1] };
  const room = 7 * Math.max(...tokens.slice(0, 2000).map((word, i) => Math.min(word.length, 12) + String(i).length + 2));
  const layout = layoutOf({
    height, width, margin: { l: 52 + room, r: both ? 150 : 90, t: both ? 36 : 14, b: 40 + room }, dragmode: "zoom",
    yaxis: { ...AXIS, ...labelled(q0, q1, 28), range: [q1, q0], title: { text: "query", standoff: 4 }, anchor: strip ? "x4" : "x" },
    coloraxis: colours(), annotations: [],
  });
  layout.coloraxis.colorbar.x = 1.01;
  if (both) layout.coloraxis2 = difference(traces);
  panels().forEach((panel, i) => {
    const from = i * each + (i ? 0.012 : 0), to = (i + 1) * each - 0.012 * (count > 1);
    layout[`xaxis${i ? i + 1 : ""}`] = { ...keys, domain: [from + strip * (1 + 0.25) * each, to], title: { text: "key", standoff: 4 }, ...(i && { matches: "x" }) };
    if (strip) {
      layout[`xaxis${i + 4}`] = { ...AXIS, domain: [from, from + strip * each], range: [-0.5, 0.5], fixedrange: true, tickvals: [0], ticktext: ["*"] };
    }
    if (panel.name) layout.annotations.push({ text: label(panel.name), x: (from + to) / 2, y: 1.01, xref: "paper", yref: "paper", yanchor: "bottom", showarrow: false });
  });
  return layout;
}

function difference(traces) {
  const most = traces.filter(({ coloraxis }) => coloraxis === "coloraxis2")
    .reduce((so, { z }) => z.reduce((m, row) => row.reduce((n, x) => (Math.abs(x) > n ? Math.abs(x) : n), m), so), 1e-9);
  return { cmin: -most, cmax: most, colorscale: about.colours.diverging, colorbar: { x: 1.09, thickness: 14, outlinewidth: 0, title: { text: "difference", side: "right" } } };
}

/** Ticks at tokens, as many as there is room for. */
function labelled(first, last, most) {
  const from = Math.max(0, Math.ceil(first)), to = Math.min(tokens.length - 1, Math.floor(last));
  const by = Math.max(1, Math.ceil((to - from + 1) / most));
  const tickvals = Array.from({ length: Math.floor((to - from) / by) + 1 }, (_, i) => from + i * by);
  return { tickvals, ticktext: tickvals.map((i) => `${i}: ${label(short(seen(tokens[i])))}`) };
}

function listenToMap() {
  $("map").on("plotly_relayout", (change) => {
    const axis = $("map")._fullLayout;
    if (!Object.keys(change).some((key) => /^[xy]axis\d*\.range/.test(key))) return;
    zoom = [axis.yaxis.range[1], axis.yaxis.range[0], ...axis.xaxis.range].map(Number);
    drawHead();
  });
  $("map").on("plotly_doubleclick", showWhole);
  $("map").on("plotly_hover", ({ event, points: [point] }) => tell(event, wordsAt(point)));
  $("map").on("plotly_unhover", hush);
}

function showWhole() {
  zoom = whole();
  return drawHead();
}

/** "key 3 'the'", or "keys 3 to 8: 'the' to 'cat'", of a run of cells. */
function run(one, many, from, to) {
  const first = from * side, last = Math.min(to * side, tokens.length) - 1;
  const name = (i) => `‘${seen(tokens[i])}’`;
  return first === last ? `${one} ${first} ${name(first)}` : `${many} ${first} to ${last}: ${name(first)} to ${name(last)}`;
}

/** What the cells under the pointer hold, in every channel and state. */
function wordsAt({ pointIndex: [r, c], data: { meta } }) {
  const [top, bottom, left, right] = meta.box, by = meta.by;
  const down = [top + r * by, Math.min(top + (r + 1) * by, bottom)];
  const box = [...down, ...(meta.slot ? [0, 1] : [left + c * by, Math.min(left + (c + 1) * by, right)])];
  const lines = [run("query", "queries", ...down), meta.slot ? "key * (off the sequence)" : run("key", "keys", box[2], box[3])];
  for (const name of meta.slot ? ["weight"] : Object.keys(open[0].channels)) {
    open.forEach((state, i) => {
      lines.push(`${name}${both ? `, ${states[i]}` : ""}: ${amount(meta.slot ? state.slot : state.channels[name], box, name)}`);
    });
  }
  if (!meta.slot && box[1] - box[0] === 1 && box[3] - box[2] === 1) lines.push(...open.map((state, i) => rankWords(state, box, i)));
  return lines.join("\n");
}

function amount(levels, box, name) {
  const largest = gathered(levels[0], box, false), mean = gathered(levels[levels.length - 1], box, true);
  const isPair = side === 1 && box[1] - box[0] === 1 && box[3] - box[2] === 1;
  const words = (x) => (name === "weight" && x === 0 ? `below ${scales.weight.low.toExponential(0)}` : number(x, scales[name]));
  return isPair ? words(largest) : `${words(largest)} largest, ${words(mean)} mean`;
}

function rankWords(state, [r, , c], i) {
  const { values } = state.channels.weight[statIndex()];
  const row = values.subarray(r * columns, (r + 1) * columns).filter((value) => value === value);
  const larger = row.filter((value) => value > values[r * columns + c]).length;
  return `rank${both ? `, ${states[i]}` : ""}: ${larger + 1} of ${row.length} ${side > 1 ? "cells" : "keys"} in its row`;
}

/* Controls. */

function options(id, words, onChange, values = words.map((_, i) => i)) {
  words.forEach((text, i) => {
    const option = document.createElement("option");
    option.textContent = text;
    option.value = values[i];
    $(id).append(option);
  });
  $(id).addEventListener("change", () => onChange($(id).value));
}

function choice(id, named, isOn, onChoice) {
  const buttons = Object.entries(named).map(([value, text]) => {
    const button = document.createElement("button");
    button.textContent = text;
    button.dataset.value = value;
    button.addEventListener("click", () => { onChoice(value); refresh(); });
    $(id).append(button);
    return button;
  });
  refreshers.push(() => buttons.forEach((button) => {
    button.setAttribute("aria-pressed", isOn(button.dataset.value));
    if (id === "scale") button.disabled = view.channel !== "weight";
  }));
}
const refreshers = [];

function refresh() {
  refreshers.forEach((each) => each());
  drawHead();
  redrawThumbs();
}

function headsOf(layer) {
  const heads = about.maps.filter(([l]) => l === layer).map(([, head]) => head);
  $("which").replaceChildren();
  heads.forEach((head) => $("which").append(Object.assign(document.createElement("option"), { textContent: head, value: head })));
  return heads;
}

function controls() {
  options("place", places.map(placed), (value) => { view.place = +value; drawOverview(); });
  options("state", both ? [...states, "change"] : states, (value) => { view.state = +value; drawOverview(); redrawThumbs(); });
  $("state-label").hidden = !both;
  const mapped = [...new Set(about.maps.map(([layer]) => layer))];
  options("layer", mapped.map(String), (value) => openHead(+value, headsOf(+value)[0]), mapped);
  $("which").addEventListener("change", () => openHead(+$("layer").value, +$("which").value));
  const channels = Object.keys(scales).filter((name) => name !== "importance");
  options("channel", channels, (value) => { view.channel = value; refresh(); }, channels);
  choice("scale", { linear: "linear", log: "log", rank: "row rank" }, (value) => value === view.scale, (value) => { view.scale = value; });
  choice("stat", { largest: "largest", mean: "mean" }, (value) => (value === "mean") === view.mean, (value) => { view.mean = value === "mean"; });
  $("stat").hidden = side === 1 && tokens.length <= PIXELS;
  $("whole").addEventListener("click", showWhole);
  for (const format of ["png", "svg"]) {
    $(format).addEventListener("click", () => Plotly.downloadImage("map", { format, filename: `layer ${about.maps[view.map].join(" head ")}`, scale: format === "png" ? 3 : 1 }));
  }
  $("thumbs").addEventListener("click", (event) => { const map = thumbAt(event); if (map >= 0) openHead(...about.maps[map]); });
  $("thumbs").addEventListener("mousemove", (event) => {
    const map = thumbAt(event);
    if (map < 0) return hush();
    const [layer, head] = about.maps[map];
    return tell(event, `layer ${layer}, head ${head}\nimportance of ${placed(places[view.place])}: ${number(alpha(view.state === 1 ? 1 : 0, layers.indexOf(layer), head), scales.importance)}`);
  });
  $("thumbs").addEventListener("mouseleave", hush);
  const redraw = () => { drawOverview(); refresh(); };
  let later = 0;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", () => { clearTimeout(later); later = setTimeout(redraw, 200); });
}

/* Words: title, tables, captions. */

function element(tag, text, more = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...more });
}

function tableElement({ title, note, columns: heads, rows: lines }) {
  const table = document.createElement("table"), box = element("div", "", { className: "wide" });
  const kind = (i) => (heads[i].wordy ? "word" : "");
  const row = (tag, words) => { const tr = document.createElement("tr"); tr.append(...words.map((text, i) => element(tag, text, { className: kind(i) }))); return tr; };
  table.append(row("th", heads.map(({ name }) => name)), ...lines.map((words) => row("td", words)));
  box.append(table);
  return [element("h2", title), box, element("p", note, { className: "caption" })];
}

function write() {
  $("title").textContent = `Attention of ${about.model}`;
  $("lead").textContent = about.lead;
  $("summary").append(...about.tables.flatMap(tableElement));
  for (const [name, text] of Object.entries(about.captions)) $(`${name}-caption`).textContent = text;
  $("protocol").textContent = about.protocol;
  document.querySelector("main").className = about.maps.length === 1 ? "single" : both ? "wide" : "";
}

function first() {
  const [, layer, head] = location.hash.match(/^#L(\d+)H(\d+)$/) ?? [];
  const named = about.maps.find(([l, h]) => l === +layer && h === +head);
  if (named) return named;
  return about.maps.reduce((best, where) => (strength(where) > strength(best) ? where : best));
}
const strength = ([layer, head]) => alphas[0][(layers.indexOf(layer) * about.heads + head) * places.length];

/** Once what was drawn is on the screen; the first time is marked, for those who measure. */
async function painted() {
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
}

/** The map to begin with, bare: Plotly takes longer to start than all the rest. */
async function sketch(map) {
  const level = await levelOf("weight", 0, map, view.mean), pixels = Math.min(PIXELS, $("map").clientWidth - 180);
  const canvas = element("canvas", "", { width: pixels, height: pixels });
  canvas.style.marginLeft = "104px";
  canvas.getContext("2d").putImageData(thumb(level, pixels), 0, 0);
  $("map").append(canvas);
}

async function start() {
  write();
  await loadAlphas();
  const where = first();
  await sketch(about.maps.indexOf(where));
  await painted();
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await bytesOf("plotly"));
  document.head.append(script);
  controls();
  if (about.maps.length > 1) await drawOverview();
  headsOf(where[0]);
  $("map").replaceChildren();
  await openHead(...where);
  refreshers.forEach((each) => each());
  listenToMap();
  if (about.maps.length > 1) listenToOverview();
  await painted();
  performance.mark("at-hand");
  await redrawThumbs();
  document.body.dataset.ready = "true";
}

start();
