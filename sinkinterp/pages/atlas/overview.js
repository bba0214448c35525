// Every head: the overview of a position's importance, and all maps, small.

let alphas = []; // importance by state: layer x head x place
const alpha = (state, layer, head) => alphas[state][(layer * about.heads + head) * places.length + view.place];

async function loadAlphas() {
  const count = layers.length * about.heads * places.length;
  const of = async (state) => decoded(await block(`importance-${state}`), tables.importance, 0, count);
  alphas = await Promise.all(states.map((_, i) => of(i)));
}

async function drawOverview() {
  const change = view.state === 2;
  const z = layers.map((_, l) => Array.from({ length: about.heads }, (_, h) =>
    change ? alpha(1, l, h) - alpha(0, l, h) : alpha(view.state, l, h)));
  const most = change ? Math.max(1e-6, ...z.flat().map(Math.abs)) : 1;
  const trace = {
    type: "heatmap", z, x0: 0, dx: 1, y: layers.map(String), hoverinfo: "none", xgap: 1, ygap: 1,
    zmin: change ? -most : 0, zmax: most, colorscale: about.colours[change ? "diverging" : "sequential"],
    colorbar: barOf(change ? "change of importance" : "importance"),
  };
  const steps = about.heads > 32 ? 8 : about.heads > 16 ? 2 : 1;
  const height = 130 + Math.max(180, Math.min(layers.length * 22, 640));
  await Plotly.react("overview", [trace], layoutOf({
    height, margin: { l: 56, r: 10, t: 10, b: 48 }, dragmode: false,
    xaxis: { ...AXIS, title: { text: "head" }, fixedrange: true, dtick: steps },
    yaxis: { ...AXIS, title: { text: "layer" }, fixedrange: true, autorange: "reversed", type: "category" },
    shapes: [marked()],
  }), { ...CONFIG, displayModeBar: false });
  $("overview").dataset.shown = `${view.state}-${view.place}`;
}

/** The frame around the head that is open. */
function marked() {
  const [layer, head] = about.maps[view.map], y = layers.indexOf(layer);
  const color = getComputedStyle(document.documentElement).getPropertyValue("--mark").trim();
  return { type: "rect", x0: head - 0.5, x1: head + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color, width: 2 } };
}

function listenToOverview() {
  $("overview").on("plotly_click", ({ points: [{ pointIndex: [l, h] }] }) => openHead(layers[l], h));
  $("overview").on("plotly_hover", ({ event, points: [{ pointIndex: [l, h] }] }) => {
    tell(event, headWords(l, h));
  });
  $("overview").on("plotly_unhover", hush);
}

function headWords(l, h) {
  const words = (x) => number(x, scales.importance);
  const lines = states.map((name, i) => `importance${both ? `, ${name}` : ""}: ${words(alpha(i, l, h))}`);
  if (both) lines.push(`change: ${words(alpha(1, l, h) - alpha(0, l, h))}`);
  return [`layer ${layers[l]}, head ${h}, position ${placed(places[view.place])}`, ...lines].join("\n");
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

let turn = 0; // of the drawing that goes on: a later one ends it

async function drawThumbs() {
  if (about.maps.length === 1) return;
  const mine = ++turn, ratio = window.devicePixelRatio || 1, state = view.state === 1 ? 1 : 0;
  grid = laidOut();
  const context = blank(ratio), pixels = Math.round(grid.size * ratio);
  for (let map = 0; map < about.maps.length; map++) {
    const level = await levelOf("weight", state, map, view.mean);
    if (mine !== turn) return;
    const image = thumb(view.scale === "rank" ? ranked(level) : level, pixels);
    context.putImageData(image, ...grid.cells[map].map((at) => at * ratio));
    if (map % 64 === 63) await new Promise((resolve) => setTimeout(resolve));
  }
  $("maps").dataset.drawn = `${view.scale}-${view.mean}`;
}

/** The canvas with the names of layers and heads alone. */
function blank(ratio) {
  const canvas = $("thumbs"), context = canvas.getContext("2d"), style = getComputedStyle(document.body);
  [canvas.width, canvas.height] = [grid.width * ratio, grid.height * ratio];
  [canvas.style.width, canvas.style.height] = [`${grid.width}px`, `${grid.height}px`];
  context.scale(ratio, ratio);
  [context.font, context.fillStyle] = [`11px ${style.fontFamily}`, style.color];
  grid.lines.forEach((layer, i) => context.fillText(`L${layer}`, 2, TOP + i * (grid.size + GAP) + grid.size / 2 + 4));
  const isWhole = about.maps.length >= about.heads; // some heads alone do not stand in columns of their own
  for (let head = 0; head < about.heads && isWhole; head += grid.size < 22 ? 4 : 1) {
    context.fillText(String(head), LEFT + head * (grid.size + GAP) + 2, 11);
  }
  return context;
}

/** From 0 to 1 as the scale has it. */
function shareOf(value) {
  if (view.scale === "rank") return value;
  if (view.scale === "linear") return value / scales.weight.high;
  return Math.log(Math.max(value, floor()) / floor()) / Math.log(scales.weight.high / floor());
}

function thumb(level, pixels) {
  const image = new ImageData(pixels, pixels);
  const edges = (n) => Array.from({ length: pixels + 1 }, (_, i) => Math.floor((i * n) / pixels));
  const [down, right] = [edges(rows), edges(columns)];
  for (let y = 0, at = 0; y < pixels; y++) {
    for (let x = 0; x < pixels; x++, at += 4) {
      const box = [down[y], Math.max(down[y + 1], down[y] + 1), right[x], Math.max(right[x + 1], right[x] + 1)];
      const value = gathered(level, box, view.mean);
      if (value !== value) continue;
      image.data.set(palette[Math.max(0, Math.min(255, Math.round(255 * shareOf(value))))], at);
      image.data[at + 3] = 255;
    }
  }
  return image;
}

/** The map under the pointer, -1 for none. */
function thumbAt({ offsetX, offsetY }) {
  const within = (at, from) => at >= from && at < from + grid.size;
  return grid.cells.findIndex(([x, y]) => within(offsetX, x) && within(offsetY, y));
}

function listenToThumbs() {
  $("thumbs").addEventListener("click", (event) => {
    const map = thumbAt(event);
    if (map >= 0) openHead(...about.maps[map]);
  });
  $("thumbs").addEventListener("mousemove", (event) => {
    const [layer, head] = about.maps[thumbAt(event)] ?? [];
    if (layer === undefined) hush(); else tell(event, headWords(layers.indexOf(layer), head));
  });
  $("thumbs").addEventListener("mouseleave", hush);
}
