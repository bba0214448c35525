// One head: its map, or the maps before and after an intervention and their difference, zoomed together.

const wholeMap = () => [-0.5, tokens.length - 0.5, -0.5, tokens.length - 0.5];
let zoom = []; // first and last query, first and last key
let openStates = []; // of the open head, by state: cells of every channel by stat, the slot by stat, and ranks by stat

let latestRequest = 0; // of several heads that are asked for at once, the last one is shown

async function openHead(layer, head) {
  const map = mapOf(layer, head), request = ++latestRequest;
  if (map < 0) return;
  const loaded = await Promise.all(states.map((_, state) => loadedState(state, map)));
  if (request !== latestRequest) return;
  [openStates, view.map, zoom] = [loaded, map, wholeMap()];
  listHeads(layer);
  [$("layer").value, $("which").value] = [layer, head];
  $("head-title").textContent = `Layer ${layer}, head ${head}`;
  await drawHead();
  drawText();
  if ($("overview").data) Plotly.relayout("overview", { shapes: [openHeadFrame()] });
  frameOpenMap();
  page.onOpenHead(layer, head);
  document.body.dataset.head = `${layer}-${head}`;
}

async function loadedState(state, map) {
  const means = stats.length > 1 ? [false, true] : [false];
  const byStat = (load) => Promise.all(means.map(load));
  return {
    channels: await Promise.all(channels.map((_, i) => byStat((mean) => cellsOf(i, state, map, mean)))),
    slot: hasSlot ? await byStat((mean) => slotOf(state, map, mean)) : null,
    ranks: [],
  };
}

/** The cells of one state that are shown. */
function shownCells(state) {
  const opened = openStates[state], stat = statIndex(view.mean);
  if (!isRank()) return opened.channels[view.channel][stat];
  opened.ranks[stat] ??= ranked(opened.channels[WEIGHT][stat]);
  return opened.ranks[stat];
}

const shownSlot = (state) => openStates[state].slot[statIndex(view.mean)];

/** The box of cells in view, and how many of them one pixel joins in each direction. */
function cellsInView() {
  const clamped = (x, most) => Math.max(0, Math.min(most, x));
  const [query0, query1, key0, key1] = zoom;
  const box = [
    clamped(Math.floor((query0 + 0.5) / side), rows - 1), clamped(Math.ceil((query1 + 0.5) / side), rows),
    clamped(Math.floor((key0 + 0.5) / side), columns - 1), clamped(Math.ceil((key1 + 0.5) / side), columns),
  ];
  const longest = Math.max(box[1] - box[0], box[3] - box[2]);
  return { box, by: Math.max(1, Math.ceil(longest / (isComparison ? MAX_PIXELS / 2 : MAX_PIXELS))) };
}

/** The maps side by side: before, after, and after minus before; or the only state. */
function panels() {
  const names = isComparison ? [...states, "difference"] : [""];
  return names.map((name, i) => ({ name, state: Math.min(i, 1), isDifference: i === 2 }));
}

/** What a panel draws of a box, if `cellsOfState` gives the cells of each state. */
function panelRows(cellsOfState, { state, isDifference }, box, by) {
  const rowsOf = (i) => joinedRows(cellsOfState(i), box, by, view.mean);
  if (!isDifference) return rowsOf(state).map(scaled);
  const before = rowsOf(0);
  return rowsOf(1).map((row, r) => row.map((value, c) => value - before[r][c]));
}

const hasSlotStrip = () => hasSlot && view.channel === WEIGHT && !isRank();
const xAxis = (i) => `x${i ? i + 1 : ""}`; // of panel i
const yAxis = (i) => (i && isStacked() ? `y${i + 1}` : "y");
const isNarrow = () => innerWidth <= 700;
const isStacked = () => isNarrow() && isComparison; // panels stand below each other
const slotAxis = (i) => `x${i + 4}`;

async function drawHead() {
  const { box, by } = cellsInView(), [top, bottom, left] = box;
  const traces = panels().flatMap((panel, i) => {
    const map = { ...heatmap(panel, top, by, panelRows(shownCells, panel, box, by)), yaxis: yAxis(i) };
    const keys = { x0: firstMiddle(left, by), dx: by * side, xaxis: xAxis(i), meta: { box, by, isSlot: false } };
    if (!hasSlotStrip()) return [{ ...map, ...keys }];
    const strip = heatmap(panel, top, by, panelRows(shownSlot, panel, [top, bottom, 0, 1], by));
    const slot = { yaxis: yAxis(i), x0: 0, dx: 1, xaxis: slotAxis(i), meta: { box, by, isSlot: true } };
    return [{ ...map, ...keys }, { ...strip, ...slot }];
  });
  await Plotly.react("map", traces, headLayout(traces), CONFIG);
  $("map").dataset.tile = [...box, by].join();
}

/** The position in the middle of the first `by` cells from a cell on. */
const firstMiddle = (cell, by) => cell * side + (by * side - 1) / 2;

function heatmap({ isDifference }, top, by, z) {
  return {
    type: "heatmap", hoverinfo: "none", hoverongaps: false, z, y0: firstMiddle(top, by), dy: by * side,
    coloraxis: isDifference ? "coloraxis2" : "coloraxis",
  };
}

/** Pixels of the figure: as large as the screen shows at once. */
function figureSize() {
  const width = Math.min($("map").clientWidth, isComparison ? 1480 : 920);
  const free = Math.max(340, isComparison ? 0.74 * innerHeight - 240 : innerHeight - 250);
  if (isNarrow()) return { width, height: Math.round((isStacked() ? 2.9 : 1) * width + 150) };
  return { width, height: Math.round(Math.min(free, 760, Math.max(360, width * (isComparison ? 0.42 : 0.86)))) };
}

/** Axes with the tokens as labels, a colour bar, and a second one for the difference. */
function headLayout(traces) {
  const letters = (word, i) => Math.min(word.length, 12) + String(i).length;
  const room = (isNarrow() ? 8 : 14) + (isNarrow() ? 5.5 : 7) * Math.max(...tokens.slice(0, 2000).map(letters));
  const below = 40 + room + (isNarrow() ? (isComparison ? 130 : 70) : 0);
  const right = isNarrow() ? 8 : isComparison ? 180 : 90;
  const layout = figureLayout({
    ...figureSize(), dragmode: "zoom", annotations: [], shapes: pinMarks(),
    margin: { l: (isNarrow() ? 30 : 52) + room, r: right, t: isComparison ? 36 : 14, b: below }, coloraxis: colourAxis(),
  });
  if (isNarrow()) layout.font.size = 10;
  placeBar(layout, layout.coloraxis.colorbar, 0);
  if (isComparison) layout.coloraxis2 = differenceColourAxis(layout, traces);
  panels().forEach((panel, i, { length }) => addPanel(layout, panel, i, length));
  return layout;
}

/** Puts colour bar `i` beside the maps, or below them on a narrow screen. */
function placeBar(layout, bar, i) {
  const { width, height, margin: { l, r, t, b } } = layout;
  if (!isNarrow()) { bar.x = 1 + (8 + 80 * i) / (width - l - r); return; }
  const inside = height - t - b, below = b - 70 - 62 * (isComparison ? 1 - i : 0);
  Object.assign(bar, { orientation: "h", x: 0.5, xanchor: "center", y: -below / inside, yanchor: "top", len: 1 });
  Object.assign(bar, { thickness: 10, title: { ...bar.title, side: "top" } });
}

/** Adds the axes and the name of the panel with index `i` of `count`. */
function addPanel(layout, { name }, i, count) {
  const gap = 0.024, each = (1 - gap * (count - 1)) / count, from = i * (each + gap), to = from + each;
  const [left, right] = isStacked() ? [0, 1] : [from, to], rise = 0.02;
  const [bottom, top] = isStacked() ? [1 - (i + 1) / count + 3 * rise, 1 - i / count - rise] : [0, 1];
  const { width, height, margin } = layout, [query0, query1, key0, key1] = zoom;
  const stripWidth = hasSlotStrip() ? 0.04 * (right - left) : 0;
  const rowsShown = ticksIn((top - bottom) * (height - margin.t - margin.b));
  const columnsShown = ticksIn((right - left) * (width - margin.l - margin.r));
  if (!i || isStacked()) {
    layout[yAxis(i).replace("y", "yaxis")] = axis({
      ...tokenTicks(query0, query1, rowsShown), range: [query1, query0], title: { text: "query", standoff: 4 },
      anchor: hasSlotStrip() ? slotAxis(i) : xAxis(i), domain: [bottom, top], ...(i && { matches: "y" }),
    });
  }
  const isLowest = !isStacked() || i === count - 1; // which has the labels of the keys
  layout[xAxis(i).replace("x", "xaxis")] = axis({
    ...tokenTicks(key0, key1, columnsShown), tickangle: -90, range: [key0, key1],
    domain: [left + 1.25 * stripWidth, right], title: { text: isLowest ? "key" : "", standoff: 4 },
    ...(i && { matches: "x" }), anchor: yAxis(i), showticklabels: isLowest,
  });
  if (hasSlotStrip()) {
    const range = { range: [-0.5, 0.5], fixedrange: true, tickvals: [0], ticktext: ["*"], anchor: yAxis(i) };
    layout[slotAxis(i).replace("x", "xaxis")] = axis({ domain: [left, left + stripWidth], ...range });
  }
  const above = { x: (left + right) / 2, y: top + 0.005, xref: "paper", yref: "paper", yanchor: "bottom" };
  if (name) layout.annotations.push({ ...above, text: label(name), showarrow: false });
}

/** Colours on both sides of zero, up to the largest difference that is drawn. */
function differenceColourAxis(layout, traces) {
  let largest = 1e-9;
  for (const { coloraxis, z } of traces) {
    if (coloraxis !== "coloraxis2") continue;
    for (const row of z) for (const value of row) if (Math.abs(value) > largest) largest = Math.abs(value);
  }
  const colorbar = colourBar("difference");
  colorbar.title.side = "top";
  placeBar(layout, colorbar, 1);
  return { cmin: -largest, cmax: largest, colorscale: stopsOf(theme().diverging), colorbar };
}

/** How many labels of tokens have room in so many pixels. */
const ticksIn = (pixels) => Math.max(3, Math.floor(pixels / 15));

/** Ticks at tokens, at most `most` of them. */
function tokenTicks(first, last, most) {
  const from = Math.max(0, Math.ceil(first)), to = Math.min(tokens.length - 1, Math.floor(last));
  const by = Math.max(1, Math.ceil((to - from + 1) / most));
  const tickvals = Array.from({ length: Math.floor((to - from) / by) + 1 }, (_, i) => from + i * by);
  return { tickvals, ticktext: tickvals.map((i) => `${i}: ${label(shortened(visible(tokens[i]), 12))}`) };
}

function listenToMap() {
  $("map").on("plotly_relayout", (change) => {
    if (!Object.keys(change).some((key) => /^[xy]axis\d*\.range/.test(key))) return;
    const { xaxis, yaxis } = $("map")._fullLayout;
    zoom = [yaxis.range[1], yaxis.range[0], ...xaxis.range].map(Number);
    drawHead();
  });
  $("map").on("plotly_doubleclick", showWholeMap);
  $("map").on("plotly_click", ({ points: [point] }) => pinToken(point));
  $("map").on("plotly_hover", ({ event, points: [point] }) => showTip(event, textOfCells(point)));
  $("map").on("plotly_unhover", hideTip);
  $("map").onkeydown = zoomByKey;
}

/** Frames around the column and the row of the chosen token, in every panel. */
function pinMarks() {
  if (chosenToken < 0) return [];
  const at = [chosenToken - 0.5, chosenToken + 0.5], line = { color: theme().mark, width: 1.5 };
  return panels().flatMap((_, i) => {
    const [x, y] = [xAxis(i), yAxis(i)], frame = { type: "rect", line };
    const column = { ...frame, xref: x, yref: `${y} domain`, x0: at[0], x1: at[1], y0: 0, y1: 1 };
    return [column, { ...frame, xref: `${x} domain`, yref: y, x0: 0, x1: 1, y0: at[0], y1: at[1] }];
  });
}

/** A click on a pair chooses its key, here and in the text; another click on it lets the key go. */
function pinToken({ pointIndex: [, c], data: { meta: { box: [, , left], by, isSlot } } }) {
  const key = (left + c * by) * side;
  if (!isSlot) chooseToken(key === chosenToken ? -1 : key);
}

function showWholeMap() {
  zoom = wholeMap();
  return drawHead();
}

/** Zooms and moves the map by a key: plus and minus, arrows, 0 for the whole map. */
function zoomByKey(event) {
  const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (event.ctrlKey || event.metaKey || event.altKey || (!factor && !steps && event.key !== "0")) return;
  event.preventDefault();
  const [query0, query1, key0, key1] = zoom, [down, right] = steps ?? [0, 0];
  zoom = event.key === "0" ? wholeMap()
    : [...zoomedEnds(query0, query1, factor ?? 1, down), ...zoomedEnds(key0, key1, factor ?? 1, right)];
  drawHead();
}

/** The ends of a part of the tokens that is `factor` times as long and stands `step` quarters later. */
function zoomedEnds(first, last, factor, step) {
  const length = Math.min(tokens.length, Math.max(2, (last - first) * factor));
  const from = (first + last - length) / 2 + (step * length) / 4;
  const start = Math.max(-0.5, Math.min(tokens.length - 0.5 - length, from));
  return [start, start + length];
}
