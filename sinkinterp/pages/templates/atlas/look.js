// What the figures share: labels, numbers and colours. Words from data are only ever set as text.

const MARKS = { "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "·" };
/** A token with its spaces and control characters made visible. */
const visible = (word) =>
  word.replace(/[\n\r\t ]/g, (c) => MARKS[c]).replace(/[\u0000-\u001f\u007f-\u009f]/g, "\ufffd");
// Plotly reads a few tags and entities in labels; without these three characters it reads none
const label = (word) => word.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const shortened = (word, most) => (word.length > most ? `${word.slice(0, most - 1)}…` : word);
const quotedToken = (i) => `‘${shortened(visible(tokens[i]), 80)}’`;
const placeName = (place) => (place < 0 ? "* (off the sequence)" : `${place} ${quotedToken(place)}`);

/** A number in as many digits as its codes hold. */
function number(x, scale) {
  if (!scale.is_log) return x.toFixed(Math.max(0, Math.min(4, Math.floor(-Math.log10(stepOf(scale))))));
  const digits = scale.bits > 8 ? 3 : 2;
  return x !== 0 && Math.abs(x) < 1e-3 ? x.toExponential(digits - 1) : x.toPrecision(digits);
}

/* Scales: weights are shown linearly, by logarithm or by rank; other channels linearly. */

const isRank = () => view.channel === WEIGHT && view.scale === "rank";
const isLog = () => view.channel === WEIGHT && view.scale === "log";

/** A row of values on the chosen scale. */
function scaled(row) {
  return isLog() ? row.map((value) => Math.log10(Math.max(value, logFloor))) : row;
}

/** The values at the two ends of the colours. */
function colourRange() {
  if (isRank()) return [0, 1];
  if (isLog()) return [Math.log10(logFloor), Math.log10(highestWeight)];
  return channels[view.channel].colour_range;
}

/* Colours are the theme's, light or dark as the viewer prefers. */

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => (prefersDark.matches ? about.themes.dark : about.themes.light);
const stopsOf = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);

function colourAxis() {
  const [low, high] = colourRange();
  const bar = colourBar(barTitle());
  if (isLog()) {
    bar.tickvals = Array.from({ length: 13 }, (_, i) => -i);
    bar.ticktext = bar.tickvals.map((power) => (power > -4 ? String(10 ** power) : `1e${power}`));
  }
  const { diverging, sequential } = theme();
  return { cmin: low, cmax: high, colorscale: stopsOf(low < 0 && !isLog() ? diverging : sequential), colorbar: bar };
}

function barTitle() {
  if (isRank()) return "share of the row’s cells that are no larger";
  const stat = side > 1 ? `, ${stats[statIndex(view.mean)]} of a cell` : "";
  return channels[view.channel].title + stat + (isLog() ? " (log)" : "");
}

const colourBar = (title) => ({ title: { text: label(title), side: "right" }, thickness: 14, outlinewidth: 0 });

/* Plotly: what all figures have in common. */

function figureLayout(fields) {
  const { fontFamily, color } = getComputedStyle(document.body);
  const clear = "rgba(0,0,0,0)";
  return { paper_bgcolor: clear, plot_bgcolor: clear, font: { family: fontFamily, size: 12, color }, ...fields };
}

function axis(fields) {
  const line = { showline: true, ticks: "outside", tickcolor: theme().axis, linecolor: theme().axis };
  return { showgrid: false, zeroline: false, ...line, ...fields };
}

// Plotly's own buttons would lie over the figure, and offer to send the data to a server of its maker
const CONFIG = { showSendToCloud: false, plotlyServerURL: "", displayModeBar: false, doubleClick: false };
