// One head: its map, or the maps before and after an intervention and their difference, zoomed together.

const wholeMap = () => [-0.5, tokens.length - 0.5, -0.5, tokens.length - 0.5];
let zoom = wholeMap(); // first and last query, first and last key
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
  if ($("overview").data) Plotly.relayout("overview", { shapes: [openHeadFrame()] });
  if (location.protocol === "file:" || location.protocol.startsWith("http")) location.replace(`#L${layer}H${head}`);
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
const slotAxis = (i) => `x${i + 4}`;

async function drawHead() {
  const { box, by } = cellsInView(), [top, bottom, left] = box;
  const traces = panels().flatMap((panel, i) => {
    const map = heatmap(panel, top, by, panelRows(shownCells, panel, box, by));
    const keys = { x0: firstMiddle(left, by), dx: by * side, xaxis: xAxis(i), meta: { box, by, isSlot: false } };
    if (!hasSlotStrip()) return [{ ...map, ...keys }];
    const strip = heatmap(panel, top, by, panelRows(shownSlot, panel, [top, bottom, 0, 1], by));
    return [{ ...map, ...keys }, { ...strip, x0: 0, dx: 1, xaxis: slotAxis(i), meta: { box, by, isSlot: true } }];
  });
  await Plotly.react("map", traces, headLayout(traces), CONFIG);
  $("map").dataset.tile = [...box, by].join();
}

/** The position in the middle of the first `by` cells from a cell on. */
const firstMiddle = (cell, by) => cell * side + (by * side - 1) / 2;

function heatmap({ isDifference }, top, by, z) {
  return {
    type: "heatmap", hoverinfo: "none", hoverongaps: false, z, yaxis: "y", y0: firstMiddle(top, by), dy: by * side,
    coloraxis: isDifference ? "coloraxis2" : "coloraxis",
  };
}

/** Axes with the tokens as labels, a colour bar, and a second one for the difference. */
function headLayout(traces) {
  const width = Math.min($("map").clientWidth, isComparison ? 1480 : 920), [query0, query1] = zoom;
  const letters = (word, i) => Math.min(word.length, 12) + String(i).length;
  const room = 14 + 7 * Math.max(...tokens.slice(0, 2000).map(letters));
  const layout = figureLayout({
    width, height: Math.min(720, Math.max(420, width * (isComparison ? 0.42 : 0.86))), dragmode: "zoom",
    margin: { l: 52 + room, r: isComparison ? 150 : 90, t: isComparison ? 36 : 14, b: 40 + room }, annotations: [],
    yaxis: axis({
      ...tokenTicks(query0, query1, 28), range: [query1, query0], title: { text: "query", standoff: 4 },
      anchor: hasSlotStrip() ? slotAxis(0) : xAxis(0),
    }),
    coloraxis: colourAxis(),
  });
  layout.coloraxis.colorbar.x = 1.01;
  if (isComparison) layout.coloraxis2 = differenceColourAxis(traces);
  panels().forEach((panel, i, { length }) => addPanel(layout, panel, i, length));
  return layout;
}

/** Adds the axes and the name of the panel with index `i` of `count`. */
function addPanel(layout, { name }, i, count) {
  const gap = isComparison ? 0.012 : 0, from = i / count + (i && gap), to = (i + 1) / count - gap;
  const stripWidth = hasSlotStrip() ? 0.04 / count : 0, [, , key0, key1] = zoom;
  layout[xAxis(i).replace("x", "xaxis")] = axis({
    ...tokenTicks(key0, key1, isComparison ? 14 : 28), tickangle: -90, range: [key0, key1],
    domain: [from + 1.25 * stripWidth, to], title: { text: "key", standoff: 4 }, ...(i && { matches: "x" }),
  });
  if (hasSlotStrip()) {
    const range = { range: [-0.5, 0.5], fixedrange: true, tickvals: [0], ticktext: ["*"] };
    layout[slotAxis(i).replace("x", "xaxis")] = axis({ domain: [from, from + stripWidth], ...range });
  }
  const above = { x: (from + to) / 2, y: 1.01, xref: "paper", yref: "paper", yanchor: "bottom" };
  if (name) layout.annotations.push({ ...above, text: label(name), showarrow: false });
}

/** Colours on both sides of zero, up to the largest difference that is drawn. */
function differenceColourAxis(traces) {
  let largest = 1e-9;
  for (const { coloraxis, z } of traces) {
    if (coloraxis !== "coloraxis2") continue;
    for (const row of z) for (const value of row) if (Math.abs(value) > largest) largest = Math.abs(value);
  }
  const colorbar = { ...colourBar("difference"), x: 1.09 };
  return { cmin: -largest, cmax: largest, colorscale: stopsOf(theme().diverging), colorbar };
}

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
  $("map").on("plotly_hover", ({ event, points: [point] }) => showTip(event, textOfCells(point)));
  $("map").on("plotly_unhover", hideTip);
}

function showWholeMap() {
  zoom = wholeMap();
  return drawHead();
}
