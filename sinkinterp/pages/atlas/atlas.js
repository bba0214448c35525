// What the page knows, and what all its figures share. Words from data are only ever set as text.

const $ = (id) => document.getElementById(id);
const about = JSON.parse($("about").textContent);
const { tokens, side, rows, columns, states, stats, scales, places, layers } = about;
const tables = Object.fromEntries(Object.entries(scales).map(([name, scale]) => [name, tableOf(scale)]));
const palette = paletteOf(about.colours.sequential);
const both = states.length === 2;
const PIXELS = 560; // cells of a tile at most, each way
const channels = Object.keys(scales).filter((name) => name !== "importance");
const view = {
  place: 0, state: 0, map: 0, channel: "weight", scale: tokens.length > 128 ? "log" : "linear", mean: false,
};
const MARKS = { "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "·" };
const seen = (word) => word.replace(/[\n\r\t ]/g, (c) => MARKS[c]).replace(/[\u0000-\u001f\u007f-\u009f]/g, "\ufffd");
// Plotly reads a few tags and entities in labels; with these three gone it reads none
const label = (word) => word.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (word, most) => (word.length > most ? `${word.slice(0, most - 1)}…` : word);
const quoted = (i) => `‘${short(seen(tokens[i]), 80)}’`;
const placed = (place) => (place < 0 ? "* (off the sequence)" : `${place} ${quoted(place)}`);

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

const statOf = (mean) => (mean && stats.length > 1 ? 1 : 0);

/** Where in the blocks of its layer a map stands. */
function placeInLayer(map) {
  const [layer] = about.maps[map];
  return about.maps.slice(0, map).filter(([other]) => other === layer).length;
}

/** A channel of one map: the largest or the mean values of its cells. */
async function levelOf(name, state, map, mean) {
  const [layer] = about.maps[map], size = rows * columns;
  const bytes = await block(`${name.replaceAll(" ", "-")}-${state}-${layer}`);
  const pairs = await block(about.pairs[layer]);
  const from = (placeInLayer(map) * stats.length + statOf(mean)) * size;
  return { values: decoded(bytes, tables[name], from, size), rows, columns, pairs: new Uint32Array(pairs.buffer) };
}

/** The off-sequence column of one map. */
async function slotOf(state, map, mean) {
  const bytes = await block(`slot-${state}-${about.maps[map][0]}`);
  const pairs = new Uint32Array(rows).fill(side);
  pairs[rows - 1] = tokens.length - (rows - 1) * side;
  const values = decoded(bytes, tables.weight, (placeInLayer(map) * stats.length + statOf(mean)) * rows, rows);
  return { values, rows, columns: 1, pairs };
}

/* What is shown of the numbers: weights on one of three scales, other channels as they are. */

const isRank = () => view.channel === "weight" && view.scale === "rank";
const isLog = () => view.channel === "weight" && view.scale === "log";
const floor = () => Math.max(scales.weight.low, 1e-6 * scales.weight.high);

/** A row of values as the colour scale takes them. */
function shown(row) {
  const least = floor();
  return isLog() ? row.map((value) => Math.log10(Math.max(value, least))) : row;
}

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
  const bar = barOf(barTitle());
  if (isLog()) {
    bar.tickvals = Array.from({ length: 13 }, (_, i) => -i);
    bar.ticktext = bar.tickvals.map((power) => (power > -4 ? String(10 ** power) : `1e${power}`));
  }
  const colorscale = low < 0 && !isLog() ? about.colours.diverging : about.colours.sequential;
  return { cmin: low, cmax: high, colorscale, colorbar: bar };
}

const LONG = { weight: "attention weight", cosine: "cos(q, k)", score: "score", "norm product": "|q| |k| × scale" };

function barTitle() {
  if (isRank()) return "share of the row’s cells that are no larger";
  return LONG[view.channel] + (side > 1 ? `, ${stats[statOf(view.mean)]} of a cell` : "") + (isLog() ? " (log)" : "");
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
const AXIS = {
  showgrid: false, zeroline: false, showline: true, ticks: "outside", tickcolor: "#888", linecolor: "#888",
};
// Plotly's own bar of buttons would offer to send the data to a server of its maker
const CONFIG = {
  showSendToCloud: false, plotlyServerURL: "", displaylogo: false, doubleClick: false,
  modeBarButtonsToRemove: ["autoScale2d", "resetScale2d", "toImage"],
};
const barOf = (title) => ({ title: { text: label(title), side: "right" }, thickness: 14, outlinewidth: 0 });
