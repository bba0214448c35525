// One head: its map, before and after an intervention and their difference, zoomed together.

const whole = () => [-0.5, tokens.length - 0.5, -0.5, tokens.length - 0.5]; // queries, keys
let zoom = whole();
let open = null; // of the head shown: by state, levels of every channel, ranks, and the slot

let asked = 0; // of the heads asked for, the last one is shown

async function openHead(layer, head) {
  const map = about.maps.findIndex(([l, h]) => l === layer && h === head), mine = ++asked;
  if (map < 0) return;
  const loaded = await Promise.all(states.map((_, state) => loadedHead(state, map)));
  if (mine !== asked) return;
  [open, view.map, zoom] = [loaded, map, whole()];
  listHeads(layer);
  [$("layer").value, $("which").value] = [layer, head];
  $("head-title").textContent = `Layer ${layer}, head ${head}`;
  await drawHead();
  if ($("overview").data) Plotly.relayout("overview", { shapes: [marked()] });
  if (location.protocol === "file:" || location.protocol.startsWith("http")) location.replace(`#L${layer}H${head}`);
  document.body.dataset.head = `${layer}-${head}`;
}

async function loadedHead(state, map) {
  const means = stats.length > 1 ? [false, true] : [false];
  const inAll = async (read) => Promise.all(means.map(read));
  const found = await Promise.all(channels.map((name) => inAll((mean) => levelOf(name, state, map, mean))));
  return {
    channels: Object.fromEntries(channels.map((name, i) => [name, found[i]])),
    slot: about.slot ? await inAll((mean) => slotOf(state, map, mean)) : null,
    ranks: [],
  };
}

function levelShown(state) {
  const { channels: levels, ranks } = open[state], stat = statOf(view.mean);
  if (!isRank()) return levels[view.channel][stat];
  ranks[stat] ??= ranked(levels.weight[stat]);
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

function panelRows(levelOfState, { state, minus }, box, by) {
  const rowsOf = (i) => pooled(levelOfState(i), box, by, view.mean);
  if (!minus) return rowsOf(state).map(shown);
  const before = rowsOf(0);
  return rowsOf(1).map((row, r) => row.map((value, c) => value - before[r][c]));
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
    const column = panelRows((state) => open[state].slot[statOf(view.mean)], panel, [box[0], box[1], 0, 1], by);
    return [map, { ...common, z: column, x0: 0, dx: 1, xaxis: axisName(i + 4), meta: { box, by, slot: true } }];
  });
  await Plotly.react("map", traces, frame(traces), CONFIG);
  $("map").dataset.tile = [...box, by].join();
}

/** Axes with token labels, one colour bar, and one for the difference. */
function frame(traces) {
  const strip = hasStrip() ? 0.04 : 0, width = Math.min($("map").clientWidth, both ? 1480 : 920);
  const [q0, q1, k0, k1] = zoom, letters = (word, i) => Math.min(word.length, 12) + String(i).length;
  const room = 14 + 7 * Math.max(...tokens.slice(0, 2000).map(letters));
  const layout = layoutOf({
    width, height: Math.min(720, Math.max(420, width * (both ? 0.42 : 0.86))), dragmode: "zoom", annotations: [],
    margin: { l: 52 + room, r: both ? 150 : 90, t: both ? 36 : 14, b: 40 + room },
    yaxis: {
      ...AXIS, ...labelled(q0, q1, 28), range: [q1, q0], title: { text: "query", standoff: 4 },
      anchor: strip ? "x4" : "x",
    },
    coloraxis: colours(),
  });
  layout.coloraxis.colorbar.x = 1.01;
  if (both) layout.coloraxis2 = difference(traces);
  const keys = { ...AXIS, ...labelled(k0, k1, both ? 14 : 28), tickangle: -90, range: [k0, k1] };
  panels().forEach((panel, i, { length }) => addPanel(layout, panel, [i / length, (i + 1) / length], i, keys, strip));
  return layout;
}

function addPanel(layout, { name }, [left, right], i, keys, strip) {
  const gap = both ? 0.012 : 0, from = left + (i && gap), to = right - gap, width = strip * (right - left);
  layout[`xaxis${i ? i + 1 : ""}`] = {
    ...keys, domain: [from + 1.25 * width, to], title: { text: "key", standoff: 4 }, ...(i && { matches: "x" }),
  };
  if (strip) {
    layout[`xaxis${i + 4}`] = {
      ...AXIS, domain: [from, from + width], range: [-0.5, 0.5], fixedrange: true, tickvals: [0], ticktext: ["*"],
    };
  }
  const middle = { x: (from + to) / 2, y: 1.01, xref: "paper", yref: "paper", yanchor: "bottom" };
  if (name) layout.annotations.push({ ...middle, text: label(name), showarrow: false });
}

/** Colours on both sides of zero, as far as the largest difference that is drawn. */
function difference(traces) {
  let most = 1e-9;
  for (const { coloraxis, z } of traces) {
    if (coloraxis !== "coloraxis2") continue;
    for (const row of z) for (const value of row) if (Math.abs(value) > most) most = Math.abs(value);
  }
  const colorbar = { ...barOf("difference"), x: 1.09 };
  return { cmin: -most, cmax: most, colorscale: about.colours.diverging, colorbar };
}

/** Ticks at tokens, as many as there is room for. */
function labelled(first, last, most) {
  const from = Math.max(0, Math.ceil(first)), to = Math.min(tokens.length - 1, Math.floor(last));
  const by = Math.max(1, Math.ceil((to - from + 1) / most));
  const tickvals = Array.from({ length: Math.floor((to - from) / by) + 1 }, (_, i) => from + i * by);
  return { tickvals, ticktext: tickvals.map((i) => `${i}: ${label(short(seen(tokens[i]), 12))}`) };
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
  if (first === last) return `${one} ${first} ${quoted(first)}`;
  return `${many} ${first} to ${last}: ${quoted(first)} to ${quoted(last)}`;
}

/** What the cells under the pointer hold, in every channel and state. */
function wordsAt({ pointIndex: [r, c], data: { meta } }) {
  const [top, bottom, left, right] = meta.box, by = meta.by;
  const down = [top + r * by, Math.min(top + (r + 1) * by, bottom)];
  const across = meta.slot ? [0, 1] : [left + c * by, Math.min(left + (c + 1) * by, right)];
  const box = [...down, ...across], isOne = down[1] - down[0] === 1 && across[1] - across[0] === 1;
  const after = (i) => (both ? `, ${states[i]}` : "");
  const lines = [run("query", "queries", ...down)];
  lines.push(meta.slot ? "key * (off the sequence)" : run("key", "keys", ...across));
  for (const name of meta.slot ? ["weight"] : channels) {
    const levels = open.map((state) => (meta.slot ? state.slot : state.channels[name]));
    lines.push(...levels.map((level, i) => `${name}${after(i)}: ${amount(level, box, name, isOne && side === 1)}`));
  }
  if (isOne && !meta.slot) lines.push(...open.map((state, i) => `rank${after(i)}: ${rankWords(state, box)}`));
  return lines.join("\n");
}

function amount(levels, box, name, isPair) {
  const { low } = scales.weight, floored = (x) => name === "weight" && x === 0;
  const words = (x) => (floored(x) ? `below ${low.toExponential(0)}` : number(x, scales[name]));
  const largest = words(gathered(levels[0], box, false)), mean = words(gathered(levels[levels.length - 1], box, true));
  return isPair ? largest : `${largest} largest, ${mean} mean`;
}

function rankWords(state, [r, , c]) {
  const { values } = state.channels.weight[statOf(view.mean)];
  const row = values.subarray(r * columns, (r + 1) * columns).filter((value) => value === value);
  const larger = row.filter((value) => value > values[r * columns + c]).length;
  return `${larger + 1} of ${row.length} ${side > 1 ? "cells" : "keys"} in its row`;
}
